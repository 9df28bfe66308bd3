"""Writes down as CUDA what an array formula does, by calling it with symbols in place of its arrays.

Numbers in a formula become arguments of the kernel, so that a learning rate which changes compiles nothing. Half
precision is computed in float32, and rounded where the formula converts to it and where results are stored.
"""

from typing import NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from .compiler import COMMON, STORAGE

STORED = STORAGE | {"bool": "bool", "int32": "int", "int64": "i64"}
UFUNCS = {
    np.add: "{} + {}", np.subtract: "{} - {}", np.multiply: "{} * {}", np.divide: "{} / {}", np.negative: "-{}",
    np.absolute: "fabs({})", np.square: "{0} * {0}", np.sqrt: "sqrt({})", np.exp: "exp({})", np.log: "log({})",
    np.tanh: "tanh({})", np.power: "pow({}, {})", np.isfinite: "isfinite({})", np.invert: "!{}",
    np.maximum: "{0} > {1} || {0} != {0} ? {0} : {1}", np.minimum: "{0} < {1} || {0} != {0} ? {0} : {1}",  # NaN stays
    np.greater: "{} > {}", np.less: "{} < {}", np.greater_equal: "{} >= {}", np.less_equal: "{} <= {}",
    np.equal: "{} == {}", np.not_equal: "{} != {}", np.bitwise_and: "{} & {}", np.bitwise_or: "{} | {}",
}
SUM, MAX = ("0", "a + b"), ("-__int_as_float(0x7f800000)", "max(a, b)")  # a first value, and how two are joined
ITEMS = 4  # elements that a thread takes where rows do not matter


class Unknown(Exception):
    """The formula does something that cannot be written down here."""


class Array(NamedTuple):
    """What a formula is told of an array: which of the arrays it is, what it has elements for, and its dtype."""

    place: int
    kind: str
    dtype: np.dtype


class Program(NamedTuple):
    """A formula as a kernel. outs: for each result, the place of an argument, or the kind and dtype of a new array."""

    code: str
    by_rows: bool
    constants: tuple
    outs: list
    several: bool


class Symbol(NDArrayOperatorsMixin):
    """An array in a formula: the name of the C++ variable that holds an element of it."""

    def __init__(self, trace, name, kind, dtype, place=None):
        self.trace, self.name, self.kind, self.dtype, self.place = trace, name, kind, np.dtype(dtype), place

    @property
    def changed(self):
        """Whether it stands for an array that was passed to the formula, and has a new value."""
        return self.place is not None and self.name != f"x{self.place}"

    def astype(self, dtype, copy=True):
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self.trace.write(self.name, [self], dtype) if copy else self
        rounded = f"{stored(dtype)}({self.name})" if dtype.kind == "f" else self.name
        return self.trace.write(rounded, [self], dtype)

    def sum(self, axis=None, dtype=None, keepdims=False):
        return self.trace.join(SUM, self, axis, dtype, keepdims)

    def mean(self, axis=None, dtype=None, keepdims=False):
        total = self.sum(axis, dtype, keepdims)
        return self.trace.write(f"{total.name} / {computed(total.dtype)}(width)", [total], total.dtype)

    def max(self, axis=None, keepdims=False):
        return self.trace.join(MAX, self, axis, None, keepdims)

    def __array_ufunc__(self, ufunc, method, *operands, out=None, **kwargs):
        if method != "__call__" or kwargs or ufunc not in UFUNCS:
            raise Unknown(ufunc)
        *loop, dtype = ufunc.resolve_dtypes((*map(dtype_of, operands), None))
        names = [self.trace.operand(x, dtype) for x, dtype in zip(operands, loop)]
        result = self.trace.write(UFUNCS[ufunc].format(*names), operands, dtype)
        return out[0].become(result) if out else result

    def __array_function__(self, function, types, args, kwargs):
        if function is np.where and len(args) == 3:
            dtype = np.result_type(*(x.dtype if isinstance(x, Symbol) else x for x in args[1:]))
            yes, no = (self.trace.operand(x, dtype) for x in args[1:])
            return self.trace.write(f"{args[0].name} ? {yes} : {no}", args, dtype)
        if function is np.full_like and not kwargs:
            return self.trace.write(self.trace.operand(args[1], self.dtype), [self], self.dtype)
        if function is np.copyto and set(kwargs) <= {"where"}:
            return args[0].become(np.where(kwargs.get("where", True), args[1], args[0]))
        raise Unknown(function)

    def __setitem__(self, index, value):
        if index is not Ellipsis:
            raise Unknown(index)
        self.become(value)

    def become(self, value):
        """Take a new value, in place."""
        if joint_kind([self, value]) != self.kind:
            raise Unknown("a result that is larger than where it goes")
        self.name = self.trace.write(self.trace.operand(value, self.dtype), [self], self.dtype).name
        return self

    def __getattr__(self, name):
        raise Unknown(name)

    def __bool__(self):
        raise Unknown("a branch that depends on the values of an array")


class Line(NamedTuple):
    """A C++ variable and its value; with a join, the value joined over the elements of the row."""

    type: str
    name: str
    value: str
    kind: str
    join: tuple | None = None

    def __str__(self):
        return f"const {self.type} {self.name} = {self.value};"


class Trace:
    """What a formula does, line by line."""

    def __init__(self):
        self.loads, self.lines, self.constants = [], [], []

    def program(self, formula, given, kwargs):
        """The Program of a formula for these arguments."""
        inputs = {}
        for x in given:
            if isinstance(x, Array) and x.place not in inputs:
                inputs[x.place] = self.load(*x)
        results = formula(*(inputs[x.place] if isinstance(x, Array) else x for x in given), **kwargs)
        several = isinstance(results, tuple)
        results = results if several else () if results is None else (results,)
        if not all(isinstance(x, Symbol) and (x.place is not None or x.kind in ("element", "column")) for x in results):
            raise Unknown("a result that is not one for each element or row")

        inputs = list(inputs.values())
        new = [x for x in results if x.place is None]
        stores = [(f"in{x.place}", x) for x in inputs if x.changed] + [(f"out{n}", x) for n, x in enumerate(new)]
        by_rows = any(line.join for line in self.lines) or {x.kind for x in (*inputs, *new)} & {"column", "vector"}
        parameters = [f"{'' if x.changed else 'const '}{stored(x.dtype)}* in{x.place}" for x in inputs]
        parameters += [f"{stored(x.dtype)}* out{n}" for n, x in enumerate(new)]
        parameters += ["u32 rows", "u32 width"] if by_rows else ["u64 size"]
        parameters += [f"{computed(c.dtype)} c{n}" for n, c in enumerate(self.constants)]
        body = "\n".join(map(str, self.by_rows(stores) if by_rows else self.flat(stores)))
        heading = "template <int LANES>\n__global__ void __launch_bounds__(BLOCK) fused"
        code = f"{COMMON}\n{heading}({', '.join(parameters)}) {{\n{body}\n}}\n"
        outs = [x.place if x.place is not None else (x.kind, x.dtype) for x in results]
        return Program(code, bool(by_rows), tuple(self.constants), outs, several)

    def load(self, place, kind, dtype):
        """The Symbol of an argument."""
        if kind is None:
            raise Unknown("an array of another shape or layout")
        at = {"element": "i", "column": "row", "vector": "j", "number": "0"}[kind]
        self.loads.append(Line(computed(dtype), f"x{place}", f"{computed(dtype)}(in{place}[{at}])", kind))
        return Symbol(self, f"x{place}", kind, dtype, place)

    def operand(self, x, dtype):
        """The C++ expression of what an operation takes, in the type that it computes in."""
        if isinstance(x, Symbol):
            return x.name if computed(x.dtype) == computed(dtype) else f"{computed(dtype)}({x.name})"
        if not isinstance(x, (int, float, np.generic)):
            raise Unknown(type(x))
        self.constants.append({"double": np.float64, "float": np.float32}.get(computed(dtype), np.int64)(x))
        return f"c{len(self.constants) - 1}"

    def write(self, value, operands, dtype):
        """A new variable."""
        return self.add(Line(computed(dtype), f"v{len(self.lines)}", value, joint_kind(operands)), dtype)

    def join(self, how, x, axis, dtype, keepdims):
        """A new variable: x joined over each row."""
        if x.kind != "element" or axis != -1 or not keepdims or x.dtype.kind != "f":
            raise Unknown("a sum that is not over rows")
        dtype = np.dtype(dtype or x.dtype)
        return self.add(Line(computed(dtype), f"v{len(self.lines)}", x.name, "column", how), dtype)

    def add(self, line, dtype):
        self.lines.append(line)
        return Symbol(self, line.name, line.kind, dtype)

    def flat(self, stores):
        """Each thread takes a few elements, BLOCK apart; all are loaded before any is stored."""
        loop = f"#pragma unroll\nfor (int k = 0; k < {ITEMS}; ++k) {{\nconst u64 i = first + k * BLOCK;"
        arrays = [line for line in self.loads if line.kind == "element"]
        yield from (line for line in self.loads if line.kind == "number")
        yield f"const u64 first = u64(blockIdx.x) * (BLOCK * {ITEMS}) + threadIdx.x;"
        yield from (f"{line.type} {line.name}s[{ITEMS}];" for line in arrays)
        yield loop
        yield from (f"if (i < size) {line.name}s[k] = {line.value};" for line in arrays)
        yield f"}}\n{loop}\nif (i >= size) return;"
        yield from (line._replace(value=f"{line.name}s[k]") for line in arrays)
        yield from self.lines
        yield from (f"{to}[i] = {stored(x.dtype)}({x.name});" for to, x in stores)
        yield "}"

    def by_rows(self, stores):
        """LANES threads take a row, and go over it once for each line that joins its elements, and once for results."""
        loop = "for (u32 j = threadIdx.x % LANES; j < width; j += LANES) {\nconst u64 i = start + j;"
        yield "const u32 row = blockIdx.x * (BLOCK / LANES) + threadIdx.x / LANES;"
        yield "if (row >= rows) return;\nconst u64 start = u64(row) * width;"
        inside = []  # what must be computed again in each loop
        for line in [*self.loads, *self.lines]:
            if line.join:
                first, join = line.join[0], f"[](auto a, auto b) {{ return {line.join[1]}; }}"
                yield f"{line.type} of_{line.name} = {first};\n{loop}"
                yield from inside
                yield f"of_{line.name} = ({join})(of_{line.name}, {line.type}({line.value}));\n}}"
                yield line._replace(value=f"across<LANES>(of_{line.name}, {join})")
            elif line.kind in ("element", "vector"):
                inside.append(line)
            else:
                yield line
        yield loop
        yield from inside
        yield from (f"{to}[i] = {stored(x.dtype)}({x.name});" for to, x in stores if x.kind == "element")
        yield "}"
        yield from (f"if (threadIdx.x % LANES == 0) {to}[row] = {stored(x.dtype)}({x.name});"
                    for to, x in stores if x.kind == "column")


def joint_kind(operands):
    """What the result of an operation has elements for."""
    kinds = {x.kind for x in operands if isinstance(x, Symbol)} - {"number"}
    return "number" if not kinds else kinds.pop() if len(kinds) == 1 else "element"


def dtype_of(x):
    """What NumPy looks at to choose the dtype of a result: Python's own numbers give way to the dtypes of arrays."""
    return x.dtype if hasattr(x, "dtype") else np.dtype(bool) if isinstance(x, bool) else type(x)


def stored(dtype):
    """The C++ type of an element in memory."""
    if dtype.name not in STORED:
        raise Unknown(dtype)
    return STORED[dtype.name]


def computed(dtype):
    """The C++ type of a variable."""
    kind = stored(np.dtype(dtype))
    return {"__half": "float", "__nv_bfloat16": "float", "int": "i64"}.get(kind, kind)
