"""Faults planted in the source of backward functions, one at a time, from the syntax tree.

What is edited: every `backward` and `*_backward` of tinyenc, and every function that only they call. Left alone are
what runs on a GPU only (tests of the kernels see to that), and what chooses a dtype, which is float64 everywhere, or
makes an array that is still to be filled.
"""

import ast
import importlib
import inspect
import pkgutil
from typing import NamedTuple

import tinyenc

APART = ("tinyenc.gradcheck", "tinyenc.kernels", "tinyenc.tape", "tinyenc.parallel", "tinyenc.backend")
ARRAY_METHODS = {"sum", "mean", "reshape", "swapaxes", "transpose", "clip", "copy", "max"}
MAKES_ROOM = {"zeros", "zeros_like", "empty", "empty_like", "heads_like", "array_module", "wide", "on_host"}
NOT_DROPPED = {"astype", "pop", "range", "len", "isinstance", "slice", "arange", "tuple", "list", "enumerate", "zip",
               "dict"}
COMPARED = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.Gt: ast.GtE, ast.LtE: ast.Gt, ast.GtE: ast.Lt,
            ast.Is: ast.IsNot, ast.IsNot: ast.Is}


class Target(NamedTuple):
    """A function to plant faults in."""

    name: str  # module.Class.method, without "tinyenc."
    function: object
    node: ast.FunctionDef


class Mutant(NamedTuple):
    """A fault: what the function's code becomes, and what was edited."""

    target: Target
    edit: str
    code: object

    @property
    def name(self):
        return f"{self.target.name}: {self.edit}"


def targets():
    """Every Target, in the order of the source."""
    defined = [found for module in modules() for found in functions(module)]
    chosen = {t.name for t in defined if is_backward(t.node.name)}
    callers = {}
    for target in defined:
        for name in calls(target.node):
            callers.setdefault(name, set()).add(target.name)
    while True:  # and what only they call
        more = {t.name for t in defined
                if callers.get(t.node.name, set()) - {t.name} and callers[t.node.name] - {t.name} <= chosen} - chosen
        if not more:
            return [t for t in defined if t.name in chosen]
        chosen |= more


def modules():
    for info in pkgutil.walk_packages(tinyenc.__path__, "tinyenc."):
        if not info.name.startswith(APART):
            yield importlib.import_module(info.name)


def functions(module):
    """Every function and method that a module defines, as a Target."""
    short = module.__name__.partition(".")[2]
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef):
            yield Target(f"{short}.{node.name}", inspect.unwrap(getattr(module, node.name)), node)
        elif isinstance(node, ast.ClassDef):
            owner = getattr(module, node.name)
            for method in node.body:
                function = inspect.unwrap(vars(owner).get(method.name)) if isinstance(method, ast.FunctionDef) else None
                if hasattr(function, "__code__"):
                    yield Target(f"{short}.{node.name}.{method.name}", function, method)


def is_backward(name):
    return name == "backward" or name.endswith("_backward")


def calls(node):
    """The names of what a function calls."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            yield called(call)


def called(call):
    """The name of what is called, without what it belongs to."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def mutants(target):
    """Every Mutant of a target, each once."""
    seen = {ast.unparse(target.node)}
    pool = values(target.node)
    for statement, parent, field, index, node in sites(target.node):
        for replacement in edits(node, parent, field, pool):
            before = first_line(statement)
            put(parent, field, index, ast.copy_location(replacement, node))
            ast.fix_missing_locations(target.node)
            try:
                text = ast.unparse(target.node)
                if text not in seen:
                    seen.add(text)
                    after = first_line(replacement if node is statement else statement)
                    yield Mutant(target, f"{before} -> {after}", recompiled(target))
            finally:
                put(parent, field, index, node)


def sites(function):
    """(innermost statement, parent, field, index in it, node) for every node of the body but what runs on a GPU."""
    def walk(statement, node):
        for field, value in ast.iter_fields(node):
            if left_alone(node, field):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(child, ast.AST):
                    inner = child if isinstance(child, ast.stmt) else statement
                    yield inner, node, field, index, child
                    yield from walk(inner, child)

    documented = ast.get_docstring(function) is not None
    for index, statement in enumerate(function.body):
        if not (documented and index == 0) and not isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement, function, "body", index, statement
            yield from walk(statement, statement)


def left_alone(node, field):
    """Whether a field of a node says only on which device or in which dtype an array is, or what shape it will have."""
    if isinstance(node, ast.If):
        return field in ("test", "body") and "on_host" in calls(node.test)
    if isinstance(node, ast.keyword):
        return node.arg == "dtype"
    if isinstance(node, ast.Attribute):
        return node.attr in ("shape", "dtype", "size", "ndim")
    if isinstance(node, ast.GeneratorExp):
        return isinstance(node.elt, ast.Call) and called(node.elt) in MAKES_ROOM
    return isinstance(node, ast.Call) and field != "func" and (called(node) in MAKES_ROOM or called(node) == "astype")


def put(parent, field, index, node):
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def first_line(node):
    return ast.unparse(node).partition("\n")[0]


def recompiled(target):
    """The code of the target's function as its node now is."""
    node = ast.FunctionDef(**{field: value for field, value in ast.iter_fields(target.node)
                              if field != "decorator_list"}, decorator_list=[])
    module = ast.Module([ast.copy_location(node, target.node)], [])
    space = dict(target.function.__globals__)
    exec(compile(module, target.function.__code__.co_filename, "exec"), space)
    return space[target.node.name].__code__


def values(function):
    """Names that stand for arrays: the arguments, what comes from the tape, and what is assigned."""
    names = [a.arg for a in function.args.args if a.arg not in ("self", "tape")]
    names += [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return list(dict.fromkeys(names))


def edits(node, parent, field, pool):
    """What may stand in a node's place, each a fault."""
    if isinstance(node, ast.stmt):
        yield from statement_edits(node)
    elif isinstance(node, ast.BinOp):
        yield from operator_edits(node)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        yield node.value
    elif isinstance(node, ast.Call):
        yield from call_edits(node)
    elif isinstance(node, ast.keyword):
        yield from keyword_edits(node)
    elif isinstance(node, ast.Constant) and isinstance(parent, ast.BinOp) and not isinstance(node.value, str | bool):
        yield ast.Constant(node.value + 1 if isinstance(node.value, int) else node.value * 1.001)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield ast.Compare(node.left, [COMPARED[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in pool and field != "func":
        yield from (ast.Name(other, ast.Load()) for other in pool if other != node.id)


def statement_edits(node):
    """Leave it out; scale it; turn its sign; set instead of adding; return in another order."""
    if isinstance(node, ast.AugAssign):
        opposite = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div}.get(type(node.op))
        if opposite:
            yield ast.AugAssign(node.target, opposite(), node.value)
        if isinstance(node.op, ast.Add):
            yield ast.Assign([node.target], node.value)
        yield from (ast.AugAssign(node.target, node.op, scaled) for scaled in scalings(node.value))
        yield ast.Pass()
    elif isinstance(node, ast.Expr):
        yield ast.Pass()
    elif isinstance(node, ast.Assign) and not (isinstance(node.value, ast.Call) and
                                               called(node.value) in MAKES_ROOM | {"pop"}):
        if isinstance(node.targets[0], ast.Subscript):
            yield ast.Pass()
        if not isinstance(node.targets[0], ast.Tuple):
            yield from (ast.Assign(node.targets, scaled) for scaled in scalings(node.value))
    elif isinstance(node, ast.Return) and node.value is not None:
        several = isinstance(node.value, ast.Tuple)
        parts = node.value.elts if several else [node.value]
        for i, part in enumerate(parts):
            for changed in [*scalings(part), ast.UnaryOp(ast.USub(), part)]:
                yield ast.Return(ast.Tuple([*parts[:i], changed, *parts[i + 1:]], ast.Load()) if several else changed)
            if i:
                swapped = [*parts[:i - 1], part, parts[i - 1], *parts[i + 1:]]
                yield ast.Return(ast.Tuple(swapped, ast.Load()))
    elif isinstance(node, ast.If) and "on_host" not in calls(node.test):
        yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)


def scalings(value):
    return [ast.BinOp(value, ast.Mult(), ast.Constant(factor)) for factor in (1.001, 2, 0.5)]


def operator_edits(node):
    """Drop a term or a factor, turn a sign, multiply where the formula divides, swap the factors of a product."""
    op = type(node.op)
    yield node.left
    if op is not ast.Div:
        yield node.right
    opposite = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Div: ast.Mult}.get(op)
    if opposite:
        yield ast.BinOp(node.left, opposite(), node.right)
    if op is ast.MatMult:
        yield ast.BinOp(node.right, ast.MatMult(), node.left)


def call_edits(node):
    """Leave the call out, keeping what it is applied to; sum for mean."""
    name = called(node)
    if name in ("sum", "mean") and isinstance(node.func, ast.Attribute):
        other = {"sum": "mean", "mean": "sum"}[name]
        yield ast.Call(ast.Attribute(node.func.value, other, ast.Load()), node.args, node.keywords)
    if name == "swapaxes" and len(node.args) == 2:
        yield ast.Call(node.func, [node.args[0], ast.Constant(-1)], [])
    if name in NOT_DROPPED | MAKES_ROOM:
        return
    if name in ARRAY_METHODS and isinstance(node.func, ast.Attribute):
        yield node.func.value
    elif node.args and not isinstance(node.args[0], ast.Constant | ast.Starred):
        yield node.args[0]


def keyword_edits(node):
    """Another axis; keepdims the other way."""
    if node.arg == "axis":
        try:
            axis = ast.literal_eval(node.value)
        except ValueError:
            return
        if isinstance(axis, int):
            yield ast.keyword("axis", ast.Constant({0: 1, 1: 0}.get(axis, axis - 1)))
        elif axis:
            yield ast.keyword("axis", ast.Constant(axis[0]))
    elif node.arg == "keepdims":
        yield ast.keyword("keepdims", ast.Constant(not node.value.value))
