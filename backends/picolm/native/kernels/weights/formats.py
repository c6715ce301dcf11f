"""What each weight type of a GGUF file becomes in memory: descriptions from which packing and kernels are made.

Weights are repacked once, without changing a value. The unit is a *strip*: as many outputs as a vector has lanes, with all their
inputs. Inputs come in blocks of 32. A quant lies in bit planes (5 = 4 + 1, 6 = 4 + 2, 3 = 2 + 1), and a plane of b bits takes b
words of 32 bits for each block and output. A word holds 16 / b *pairs* of inputs (2j, 2j + 1), from bit 0 on, the even input in the
lower half and the odd one in the upper half: one shift and one mask give two 16-bit integers in each lane, which is what the dot
product instruction wants. Pairs follow each other in the order of the inputs or, in types whose bytes hold inputs k and k + 16 of a
block, in an order (`halves`) in which words are those bytes, so that packing need not take them apart.

A strip holds, one after the other and each aligned to a vector:

    planes   uint32  [block][word][lane]        one section for each plane
    fine     uint8   [group][entry][lane]       scale (and minimum) of each group, k-quants only
    coarse   float16 [super][entry][lane]       scale (and minimum) of each block, or of 256 inputs in k-quants
"""

from __future__ import annotations

import enum

import msgspec

BLOCK = 32
"""Inputs of a block: the activations have one scale for each."""
STEP = 8
"""Inputs that kernels take at a time."""
SUPER = 256
"""Inputs that share the coarse scale of a k-quant."""


class Fine(enum.Enum):
    """How a k-quant's group scales are held."""

    NONE = "none"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    NIBBLES = "nibbles"
    """Scale in the lower four bits, minimum in the upper four."""


class Format(msgspec.Struct, frozen=True):
    """A quantised type: `value = scale * (quant - offset)`, plus or minus a minimum for each group."""

    name: str
    planes: tuple[int, ...]
    """Bits of each plane, lowest first."""
    offset: int = 0
    minimum: bool = False
    group: int = BLOCK
    """Inputs that share a scale."""
    fine: Fine = Fine.NONE
    halves: bool = False
    """Word w of the first plane holds pairs 2w, 2w + 8, 2w + 1, 2w + 9 of a block instead of 4w, 4w + 1, 4w + 2, 4w + 3."""

    @property
    def pair_offsets(self) -> tuple[int, ...]:
        """Where a step's four pairs lie, counted from its first pair."""
        return (0, 8, 1, 9) if self.halves else (0, 1, 2, 3)

    @property
    def step_pairs(self) -> int:
        """From the first pair of a step to that of the next one of the block."""
        return 2 if self.halves else 4

    @property
    def order(self) -> list[int]:
        """Pairs of a block in the order in which they are stored."""
        return [self.step_pairs * step + offset for step in range(BLOCK // STEP) for offset in self.pair_offsets]

    @property
    def bits(self) -> int:
        """Bits of a quant; also the words of a block, for each output."""
        return sum(self.planes)

    @property
    def coarse_inputs(self) -> int:
        """Inputs that share a float16 scale."""
        return BLOCK if self.fine is Fine.NONE else SUPER

    @property
    def coarse_entries(self) -> int:
        """Float16 values of one coarse group, for each output."""
        return 2 if self.minimum else 1

    @property
    def group_entries(self) -> int:
        """Bytes of a group's scale and minimum, for each output."""
        if self.fine is Fine.NONE:
            return 0
        return 2 if self.minimum and self.fine is not Fine.NIBBLES else 1

    @property
    def fine_entries(self) -> int:
        """The same for a block."""
        return BLOCK // self.group * self.group_entries

    def sections(self, k: int, lanes: int) -> list[int]:
        """Bytes of a strip's planes, fine scales and coarse scales, each rounded up to a vector."""
        blocks = k // BLOCK
        return [
            *(blocks * bits * lanes * 4 for bits in self.planes),
            _whole(blocks * self.fine_entries * lanes, lanes),
            _whole(k // self.coarse_inputs * self.coarse_entries * lanes * 2, lanes),
        ]

    def strip_bytes(self, k: int, lanes: int) -> int:
        """Bytes of one strip."""
        return sum(self.sections(k, lanes))


class FloatFormat(msgspec.Struct, frozen=True):
    """Weights that are floats in the file: a strip is [input][lane]."""

    name: str
    element_bytes: int

    def strip_bytes(self, k: int, lanes: int) -> int:
        """Bytes of one strip."""
        return _whole(k * lanes * self.element_bytes, lanes)


AnyFormat = Format | FloatFormat

FORMATS: dict[str, AnyFormat] = {
    each.name: each
    for each in (
        Format("Q4_0", (4,), offset=8, halves=True),
        Format("Q4_1", (4,), minimum=True, halves=True),
        Format("Q5_0", (4, 1), offset=16, halves=True),
        Format("Q5_1", (4, 1), minimum=True, halves=True),
        Format("Q8_0", (8,), offset=128),
        Format("Q2_K", (2,), minimum=True, group=16, fine=Fine.NIBBLES),
        Format("Q3_K", (2, 1), offset=4, group=16, fine=Fine.SIGNED),
        Format("Q4_K", (4,), minimum=True, fine=Fine.UNSIGNED),
        Format("Q5_K", (4, 1), minimum=True, fine=Fine.UNSIGNED),
        Format("Q6_K", (4, 2), offset=32, group=16, fine=Fine.SIGNED),
        FloatFormat("F16", 2),
        FloatFormat("BF16", 2),
        FloatFormat("F32", 4),
    )
}


def _whole(size: int, lanes: int) -> int:
    return -(-size // (4 * lanes)) * 4 * lanes
