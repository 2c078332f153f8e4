"""An explicit vector operation: y += sum of some rows of a table.

LLVM vectorizes the same sum written as a loop, but checks for overlap of y and the table in every call, which
takes 1.6 times as long.
"""

from __future__ import annotations

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tumoar.numerics.convolve import _SPAN, _VECTOR

_INTEGERS = ir.VectorType(ir.IntType(32), _VECTOR)  # LLVM splits them on machines with shorter vectors


@intrinsic
def add_rows(_, y, at, table, rows):
    """y[at + t] += sum of table[r + t] over the tuple `rows`, for t < R * CELL.

    y and table are flat int32 arrays that do not overlap; bounds are not checked.
    """

    def code(context, builder, signature, arguments):
        data = [context.make_array(signature.args[k])(context, builder, arguments[k]).data for k in (0, 2)]

        def vector(array, begin, t):
            place = builder.gep(array, [builder.add(begin, begin.type(t))])
            return builder.bitcast(place, _INTEGERS.as_pointer())

        for t in range(0, _SPAN, _VECTOR):
            target = vector(data[0], arguments[1], t)
            total = builder.load(target, align=4)
            for row in cgutils.unpack_tuple(builder, arguments[3]):
                total = builder.add(total, builder.load(vector(data[1], row, t), align=4))
            builder.store(total, target, align=4)
        return context.get_dummy_value()

    return types.void(y, types.uint64, table, rows), code
