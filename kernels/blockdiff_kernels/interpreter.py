"""True bfloat16 for Triton's interpreter, which keeps such numbers as bits and computes on bits.

Values are widened to float32, which is exact, computed, and rounded to the nearest even bfloat16 as
a GPU does. Touches private names of triton.runtime.interpreter of Triton 3.6 to 3.9;
tests/kernels/test_interpreter.py fails when they move.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter

Array = npt.NDArray[Any]
Handle, Builder = interpreter.TensorHandle, interpreter.InterpreterBuilder
_MARK = "_blockdiff_bf16"


def widen(bits: Array) -> Array:
    """uint16 bits -> the same numbers as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: Array) -> Array:
    """float32 -> uint16 bits, rounded to the nearest even."""
    words = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).reshape(np.shape(values))


def install() -> None:
    """Mend the interpreter of this process, once."""
    if getattr(Builder, _MARK, False):
        return
    setattr(Builder, _MARK, True)
    if not hasattr(Builder, "get_bf16"):
        Builder.get_bf16 = lambda self, value: _scalar(value)
    _mend_arithmetic()
    _mend_casts()
    _mend_reductions()
    _mend_conditions()


def _scalar(value: float) -> Any:
    return Handle(narrow(np.array([value], np.float32)), tl.bfloat16)


def _is_bf16(handle: Any) -> bool:
    if not isinstance(handle, Handle) or handle.data.dtype != np.uint16:
        return False
    return bool(handle.dtype.scalar == tl.bfloat16)


def _up(handle: Any) -> Any:
    return Handle(widen(handle.data), tl.float32) if _is_bf16(handle) else handle


def _down(data: Array) -> Any:
    return Handle(data, tl.int1) if data.dtype == np.bool_ else Handle(narrow(data), tl.bfloat16)


def _mend_arithmetic() -> None:
    dot, binary, unary = Builder.create_dot, Builder.binary_op, Builder.unary_op

    def binary_op(self: Any, left: Any, right: Any, op: Any) -> Any:
        if _is_bf16(left) and _is_bf16(right):
            return _down(op(_up(left).data, _up(right).data))
        return binary(self, left, right, op)

    def unary_op(self: Any, value: Any, op: Any) -> Any:
        return _down(op(_up(value).data)) if _is_bf16(value) else unary(self, value, op)

    Builder.create_dot = lambda self, a, b, *rest: dot(self, _up(a), _up(b), *rest)
    Builder.binary_op, Builder.unary_op = binary_op, unary_op


def _mend_casts() -> None:
    cast, convert = Builder.cast_impl, Builder.create_fp_to_fp

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        kind = target.scalar
        if _is_bf16(source) and kind != tl.bfloat16:
            return _up(source) if kind == tl.float32 else cast(self, _up(source), target)
        if kind == tl.bfloat16 and not _is_bf16(source):
            return Handle(narrow(source.data.astype(np.float32)), tl.bfloat16)
        return cast(self, source, target)

    def fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        kinds = {source.dtype.scalar, target.scalar}
        if tl.bfloat16 in kinds and kinds <= {tl.bfloat16, tl.float32, tl.float16}:
            return cast_impl(self, source, target)
        return convert(self, source, target, rounding)

    Builder.cast_impl, Builder.create_fp_to_fp = cast_impl, fp_to_fp


def _mend_conditions() -> None:
    """A scalar comparison stays one when it is spread over a tile; 3.9 makes it an integer."""
    splat = Builder.create_splat

    def create_splat(self: Any, kind: Any, value: Any) -> Any:
        if value.data.dtype != np.bool_:
            return splat(self, kind, value)
        return Handle(np.full(kind.shape, value.data.item()), tl.int1)

    Builder.create_splat = create_splat


def _mend_reductions() -> None:
    reduce = interpreter.ReduceOps

    def to_bf16(tensor: Any) -> Any:
        handle = Handle(narrow(tensor.handle.data), tl.bfloat16)
        kind = tl.block_type(tl.bfloat16, list(tensor.shape)) if tensor.shape else tl.bfloat16
        return tl.core.tensor(handle, kind)

    def lift(method: Any) -> Any:
        def run(self: Any, x: Any, *args: Any, **named: Any) -> Any:
            first = x[0] if isinstance(x, tuple) else x
            if not _is_bf16(first.handle):
                return method(self, x, *args, **named)
            wide = self.to_tensor(widen(first.handle.data), tl.float32)
            found = method(self, wide, *args, **named)
            if not isinstance(found, tuple):
                return to_bf16(found)
            return tuple(to_bf16(t) if t.dtype.scalar == tl.float32 else t for t in found)

        return run

    min_max = reduce.min_max

    def of_numbers(self: Any, x: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        places = None if idx_reduce_op is None else _without_empty(idx_reduce_op)
        return min_max(self, x, val_reduce_op, places)

    reduce.sum, reduce.min_max = lift(reduce.sum), lift(of_numbers)


def _without_empty(place: Any) -> Any:
    """Where nothing is a number the place is the first; 3.9 would raise."""

    def run(data: Array, axis: Any, keepdims: bool) -> Array:
        if data.dtype.kind == "f":
            data = np.where(np.isnan(data).all(axis=axis, keepdims=True), 0, data)
        found: Array = place(data, axis=axis, keepdims=keepdims)
        return found

    return run
