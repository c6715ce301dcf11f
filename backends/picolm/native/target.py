"""What the processor offers to generated code, and how code is compiled for it.

Kernels are written once and ask a `Target` for its width; they never ask for a processor's name. A target other than the host's own
can be made for tests: narrower code runs on a wider machine.
"""

from __future__ import annotations

import functools

import llvmlite.binding as llvm
import msgspec

WIDE_FEATURES = ("avx512f", "avx512bw", "avx512vl", "avx512dq")
"""512-bit vectors are used where a processor has all of these."""
NARROW_FEATURES = ("avx2", "fma", "f16c")


class Target(msgspec.Struct, frozen=True):
    """Vector width and the instructions worth knowing. `features` is what LLVM is told."""

    architecture: str
    """`x86_64`, `aarch64`, …: the first part of the triple."""
    lanes: int
    """float32 elements of a vector: 16, 8 or 4."""
    dot_product: bool
    """x86: `vpdpwssd` at this width multiplies pairs of int16 and adds them to int32 in one instruction."""
    processor: str
    features: str

    @property
    def name(self) -> str:
        """Short, for people and for file names: `x86_64-512-dot`."""
        return f"{self.architecture}-{self.lanes * 32}{'-dot' if self.dot_product else ''}"


@functools.cache
def host_target() -> Target:
    """The widest code that this machine runs."""
    architecture = llvm.get_default_triple().split("-")[0]
    features = llvm.get_host_cpu_features()
    lanes, dot_product = 4, False
    if all(features.get(name) for name in WIDE_FEATURES):
        lanes, dot_product = 16, bool(features.get("avx512vnni"))
    elif all(features.get(name) for name in NARROW_FEATURES):
        lanes, dot_product = 8, False
    return Target(architecture, lanes, dot_product, llvm.get_host_cpu_name(), features.flatten())


def narrower_targets() -> list[Target]:
    """The host's target and those below it that it can run too: tests prove that all give the same bits."""
    host = host_target()
    found = [host]
    if host.dot_product:
        found.append(msgspec.structs.replace(host, dot_product=False, features=host.features + ",-avx512vnni"))
    if host.architecture != "x86_64":
        return found
    if host.lanes > 8:
        without = "".join(f",-{name}" for name in llvm.get_host_cpu_features() if name.startswith("avx512"))
        found.append(Target(host.architecture, 8, False, "x86-64", "+avx2,+fma,+f16c,+sse4.2" + without))
    if host.lanes > 4:
        found.append(Target(host.architecture, 4, False, "x86-64", "+sse4.1,+ssse3,-avx"))
    return found


def target_machine(target: Target) -> llvm.TargetMachine:
    """LLVM's code generator for a target."""
    _keep_sums_in_order()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(cpu=target.processor, features=target.features, opt=3)


@functools.cache
def _keep_sums_in_order() -> None:
    """Tell LLVM to leave chains of integer additions as they are written.

    It would turn the chains of a linear kernel, one for each sum, into trees, which need more registers than there are: left alone,
    four rows by two strips are 10 to 18 % faster. The option is the process's; it concerns speed only.
    """
    llvm.set_option("tripower", "-x86-machine-combiner=false")
