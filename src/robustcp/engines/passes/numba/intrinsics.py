# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""What compiled code does with pointers: shift them, call functions by address, multiply matrices.

An array of which only the address is used must be given to `keep_alive` after that, or it is freed
before. Matrices are in row order, without gaps.
"""

from functools import reduce

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic


def _integer(context, builder, kind, value):
    """An argument of a C function as an integer: where an array, a pointer or a record is."""
    number = context.get_value_type(types.intp)
    if isinstance(kind, types.Array):
        value = context.make_array(kind)(context, builder, value).data
    if isinstance(value.type, ir.PointerType):
        return builder.ptrtoint(value, number)
    return context.cast(builder, value, kind, types.intp)


@intrinsic
def address(typing_context, memory):
    """Where the memory of an array begins, or what a pointer or a record points to."""

    def code(context, builder, signature, arguments):
        return _integer(context, builder, signature.args[0], arguments[0])

    return types.intp(memory), code


@intrinsic
def keep_alive(typing_context, array):
    """Nothing; but an array that was looked at by its address alone is not freed before."""
    return types.void(array), lambda context, *_: context.get_dummy_value()


@intrinsic
def or_zero(typing_context, condition, value):
    """The value where a condition holds, else 0: for vectors, where a branch would not do."""

    def code(context, builder, signature, arguments):
        zero = ir.Constant(arguments[1].type, 0.0)
        return builder.select(arguments[0], arguments[1], zero)

    return value(types.boolean, value), code


@intrinsic
def pointer(typing_context, location, like):
    """A pointer to what is at an address, of the type that a pointer or an array has."""

    def code(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.intp, like), code


@intrinsic
def shift(typing_context, start, count):
    """The pointer to the number that comes `count` numbers after another pointer's.

    By integers: if the compiler knew that both point into one array, it would order sums in another
    way, and results would have other last bits.
    """

    def code(context, builder, signature, arguments):
        number, kind = context.get_value_type(types.intp), context.get_value_type(start)
        width = context.get_abi_sizeof(context.get_value_type(start.dtype))
        steps = builder.mul(arguments[1], ir.Constant(number, width))
        return builder.inttoptr(builder.add(builder.ptrtoint(arguments[0], number), steps), kind)

    return start(start, types.intp), code


@intrinsic
def call(typing_context, function, arguments):
    """Call the C function at an address with a tuple of integers, pointers and records.

    It returns a float.
    """

    def code(context, builder, signature, values):
        number = context.get_value_type(types.intp)
        kind = ir.FunctionType(ir.DoubleType(), [number] * len(arguments))
        integers = [
            _integer(context, builder, *pair)
            for pair in zip(arguments, cgutils.unpack_tuple(builder, values[1]), strict=True)
        ]
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), integers)

    return types.float64(types.intp, arguments), code


#: How many numbers the functions of vectors below take at once; sizes are multiples of it.
VECTOR = 4
_VECTOR_TYPE = ir.VectorType(ir.DoubleType(), VECTOR)
_CONTRACT = ("contract",)


def _vectors(builder, size, pointers):
    """For each vector of some arrays: where it is in each of them."""
    step = size.type(VECTOR)
    with cgutils.for_range_slice(builder, size.type(0), size, step, inc=True) as (k, _):
        yield [builder.bitcast(builder.gep(p, [k]), _VECTOR_TYPE.as_pointer()) for p in pointers]


@intrinsic
def multiply(typing_context, product, a, b, size):
    """The elementwise product of two arrays, by vectors."""

    def code(context, builder, signature, arguments):
        *pointers, count = arguments
        for target, left, right in _vectors(builder, count, pointers):
            values = [builder.load(source, align=8) for source in (left, right)]
            builder.store(builder.fmul(*values), target, align=8)
        return context.get_dummy_value()

    return types.void(product, a, b, types.intp), code


@intrinsic
def add_multiple(typing_context, target, multiplier, source, size):
    """Add a multiple of an array to another one, by vectors."""

    def code(context, builder, signature, arguments):
        total, number, added, count = arguments
        multipliers = ir.Constant(_VECTOR_TYPE, ir.Undefined)
        for k in range(VECTOR):
            multipliers = builder.insert_element(multipliers, number, ir.IntType(32)(k))
        for place, other in _vectors(builder, count, [total, added]):
            multiple = builder.fmul(multipliers, builder.load(other, align=8), flags=_CONTRACT)
            value = builder.fadd(builder.load(place, align=8), multiple, flags=_CONTRACT)
            builder.store(value, place, align=8)
        return context.get_dummy_value()

    return types.void(target, types.float64, source, types.intp), code


@intrinsic
def inner_product(typing_context, a, b, size):
    """The inner product of two arrays, by vectors."""

    def code(context, builder, signature, arguments):
        *pointers, count = arguments
        sums = cgutils.alloca_once_value(builder, ir.Constant(_VECTOR_TYPE, [0.0] * VECTOR))
        for places in _vectors(builder, count, pointers):
            values = [builder.load(place, align=8) for place in places]
            product = builder.fmul(*values, flags=_CONTRACT)
            builder.store(builder.fadd(builder.load(sums), product, flags=_CONTRACT), sums)
        parts = [
            builder.extract_element(builder.load(sums), ir.IntType(32)(k)) for k in range(VECTOR)
        ]
        return reduce(builder.fadd, parts)

    return types.float64(a, b, types.intp), code


def _matrix_product(turn_left, turn_right):
    """The code of a matrix product, with one of the factors transposed or none, by BLAS's gemm.

    BLAS counts in the order of Fortran, and so sees the transposes of the matrices: for C = A B
    B comes first. Its integers are in 64 bits, of which it may read the lower half.
    """

    def code(context, builder, signature, arguments):
        number = context.get_value_type(types.intp)

        def stack_address(value):
            slot = cgutils.alloca_once_value(builder, value)
            return builder.ptrtoint(slot, number)

        function, A, B, C, rows, inner, columns, accumulate = arguments
        real = context.get_value_type(signature.args[3].dtype)
        one, zero = ir.Constant(real, 1.0), ir.Constant(real, 0.0)
        integers = [
            ir.Constant(number, ord("T" if turn_right else "N")),
            ir.Constant(number, ord("T" if turn_left else "N")),
            columns,
            rows,
            inner,
        ]
        addresses = [
            *map(stack_address, integers),
            stack_address(one),
            builder.ptrtoint(B, number),
            stack_address(inner if turn_right else columns),
            builder.ptrtoint(A, number),
            stack_address(rows if turn_left else inner),
            stack_address(builder.select(accumulate, one, zero)),
            builder.ptrtoint(C, number),
            stack_address(columns),
        ]
        kind = ir.FunctionType(ir.VoidType(), [number] * len(addresses))
        builder.call(builder.inttoptr(function, kind.as_pointer()), addresses)
        return context.get_dummy_value()

    return code


def _product_signature(A, B, C):
    return types.void(types.intp, A, B, C, *[types.intp] * 3, types.boolean)


@intrinsic
def product(typing_context, gemm, A, B, C, rows, inner, columns, accumulate):
    """C = A B, or C += A B, where C has `rows` and `columns`; see `gemm`."""
    return _product_signature(A, B, C), _matrix_product(False, False)


@intrinsic
def transposed_left_product(typing_context, gemm, A, B, C, rows, inner, columns, accumulate):
    """As `product`, for A' B."""
    return _product_signature(A, B, C), _matrix_product(True, False)


@intrinsic
def transposed_right_product(typing_context, gemm, A, B, C, rows, inner, columns, accumulate):
    """As `product`, for A B'."""
    return _product_signature(A, B, C), _matrix_product(False, True)


def gemm(real):
    """Where BLAS's product of matrices is."""
    name = "sgemm" if real == np.float32 else "dgemm"
    return get_cython_function_address("scipy.linalg.cython_blas", name)
