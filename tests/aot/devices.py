"""Limits of the GPUs that kernels are compiled for. Source: CUDA C++ Programming Guide, table of
technical specifications per compute capability."""

from typing import NamedTuple


class Limits(NamedTuple):
    shared_per_block: int  # bytes
    shared_per_sm: int
    registers_per_sm: int = 65536
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32


LIMITS = {
    (8, 0): Limits(163 << 10, 164 << 10),
    (9, 0): Limits(227 << 10, 228 << 10),
    (10, 0): Limits(227 << 10, 228 << 10),
}
RESERVED_SHARED = 1 << 10  # of each block, by the system
REGISTER_UNIT = 256  # registers of a warp are handed out in such units


def blocks_per_sm(limits: Limits, registers: int, shared: int, num_warps: int) -> int:
    """Programs that one multiprocessor holds at the same time."""
    per_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = limits.registers_per_sm // (per_warp * num_warps)
    by_shared = limits.shared_per_sm // (shared + RESERVED_SHARED)
    by_threads = limits.threads_per_sm // (32 * num_warps)
    return min(by_registers, by_shared, by_threads, limits.blocks_per_sm)
