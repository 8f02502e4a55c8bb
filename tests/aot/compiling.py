"""Compiles recorded launches for GPUs that are not here, and reads what the code needs of them.

Runs in a process without TRITON_INTERPRET, in which there are no kernels to compile.
"""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from blockdiff_kernels.launch import Launch, Recorder, recording
from tests.aot.case import Case

TYPES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}
BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class Kernel(NamedTuple):
    """One kernel as the compiler sees it; equal ones are compiled once."""

    name: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[int, ...]  # numbers of arguments that 16 divides
    options: tuple[tuple[str, int], ...]
    capability: tuple[int, int]


class Needs(NamedTuple):
    """What a compiled kernel takes."""

    registers: int
    stack: int
    shared: int
    wgmma: int  # instructions
    mma: int


class Found(NamedTuple):
    kernel: Kernel
    function: Any
    cases: list[Case]


def collect(cases: Sequence[Case], capability: tuple[int, int]) -> dict[Kernel, Found]:
    """Every distinct kernel that ``cases`` start on such a device."""
    found: dict[Kernel, Found] = {}
    for case in cases:
        launches: list[Launch] = []
        with recording(Recorder(capability, launches.append)):
            case.call()
        assert launches, f"{case.name} starts no kernel"
        for one in launches:
            kernel = describe(one, capability)
            found.setdefault(kernel, Found(kernel, one.kernel, [])).cases.append(case)
    return found


def describe(one: Launch, capability: tuple[int, int]) -> Kernel:
    """The specialisation that Triton's own launcher would make of these arguments."""
    signature, constants, aligned = [], [], []
    given = set(one.arguments)
    names = [parameter.name for parameter in one.kernel.params]
    assert given == set(names), f"{one.kernel.fn.__name__}: {given ^ set(names)}"
    for parameter in one.kernel.params:
        value = one.arguments[parameter.name]
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
            signature.append((parameter.name, "constexpr"))
            constants.append((parameter.name, value))
            continue
        signature.append((parameter.name, _type_of(value)))
        if isinstance(value, torch.Tensor) or (type(value) is int and value % 16 == 0):
            aligned.append(parameter.num)
    return Kernel(
        name=one.kernel.fn.__name__,
        signature=tuple(signature),
        constants=tuple(constants),
        aligned=tuple(aligned),
        options=tuple(sorted(one.options.items())),
        capability=capability,
    )


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
    assert isinstance(value, float), value
    return "fp32"


def compile_kernel(kernel: Kernel, function: Any) -> Needs:
    """Compile and disassemble."""
    major, minor = kernel.capability
    source = ASTSource(
        fn=function,
        signature=dict(kernel.signature),
        constexprs=dict(kernel.constants),
        attrs={(number,): [["tt.divisibility", 16]] for number in kernel.aligned},
    )
    target = GPUTarget("cuda", major * 10 + minor, 32)
    compiled = triton.compile(source, target=target, options=dict(kernel.options))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _run("cuobjdump", "--dump-resource-usage", file.name)
        code = _run("cuobjdump", "--dump-sass", file.name)
    registers, stack = (int(re.search(rf"{x}:(\d+)", usage)[1]) for x in ("REG", "STACK"))
    wgmma = len(re.findall(r"\b(?:HGMMA|QGMMA|IGMMA|UTCHMMA|UTCQMMA|UTCIMMA)\b", code))
    mma = len(re.findall(r"\b(?:HMMA|QMMA|IMMA)\b", code))
    return Needs(registers, stack, compiled.metadata.shared, wgmma, mma)


def _run(tool: str, *arguments: str) -> str:
    done = subprocess.run([str(BIN / tool), *arguments], capture_output=True, text=True, check=True)
    return done.stdout
