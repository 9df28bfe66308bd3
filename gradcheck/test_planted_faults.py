"""A sample of planted faults, caught by the quick cases; `python -m gradcheck.planted_faults` plants them all."""

import ast

import numpy as np

from tinyenc import Linear, MeanPool, ops
from tinyenc.layers.linear import Linear as LinearItself

from .cases import case, x
from .completeness import all_cases
from .equivalents import EQUIVALENT
from .mutate import Target, mutants, targets
from .planted_faults import Bench, complaints, run


def target(name):
    return next(t for t in targets() if t.name == name)


def test_a_sample_of_planted_faults_is_caught():
    simple = [c for c in all_cases() if len(list(c.layer.named_layers())) < 3 and "blocks" not in c.name]
    formulas = [t for t in targets() if t.name.startswith("ops.")]
    users = Bench(simple, formulas).users
    results = run([t for t in formulas if users[t.name]], simple, every=5)
    assert len(results) > 20
    assert list(complaints(results, complete=False)) == []


def test_every_backward_has_faults_planted():
    names = [t.name for t in targets()]
    assert "layers.linear.Linear.backward" in names
    assert "scores.softmax_backward" in names
    assert "distance.RelativeBias.add_grad" in names  # only backward calls it
    assert "ops.matmul" not in names  # forward calls it too
    assert not [name for name in names if name.startswith(("gradcheck", "kernels"))]


EXAMPLE = """
def backward(self, dy, tape):
    x, drop = tape.pop(self)
    dropped = drop.apply(x) if drop else x
    self.weight.grad += dropped.T @ dy
    dx = dy * 2 - dy.sum(axis=-1, keepdims=True, dtype=wide(dy.dtype))
    dx[x == 0] = 0
    if self.bias:
        self.bias.backward(dy, tape)
    if not on_host(dy):
        return dx * 3
    return dx, self.merge(dropped)
"""


def test_faults_are_of_many_kinds():
    node = ast.parse(EXAMPLE).body[0]
    edits = [mutant.edit for mutant in mutants(Target("example", test_faults_are_of_many_kinds, node))]
    before = "dropped = drop.apply(x) if drop else x -> dropped = "
    assert {before + "x", before + "drop.apply(x)", before + "x if drop else x"} <= set(edits)
    before = "self.weight.grad += dropped.T @ dy -> "
    assert {before + "pass",
            before + "self.weight.grad = dropped.T @ dy", before + "self.weight.grad -= dropped.T @ dy",
            before + "self.weight.grad += dropped.T @ dy * 1.001", before + "self.weight.grad += dropped @ dy",
            before + "self.weight.grad += x.T @ dy", before + "self.weight.grad += dy @ dropped.T"} <= set(edits)
    before = "dx = dy * 2 - dy.sum(axis=-1, keepdims=True, dtype=wide(dy.dtype)) -> dx = "
    after = "dy.sum(axis=-1, keepdims=True, dtype=wide(dy.dtype))"
    assert {before + "dy * 2", before + after, f"{before}dy * 2 + {after}", f"{before}dy - {after}",
            f"{before}dy * 3 - {after}", before + "dy * 2 - dy.mean(axis=-1, keepdims=True, dtype=wide(dy.dtype))",
            before + "dy * 2 - dy.sum(axis=-2, keepdims=True, dtype=wide(dy.dtype))",
            before + "dy * 2 - dy.sum(axis=-1, keepdims=False, dtype=wide(dy.dtype))"} <= set(edits)
    assert {"dx[x == 0] = 0 -> pass", "dx[x == 0] = 0 -> dx[x != 0] = 0", "if self.bias: -> if not self.bias:",
            "self.bias.backward(dy, tape) -> pass"} <= set(edits)
    before = "return (dx, self.merge(dropped)) -> return "
    assert {before + "(-dx, self.merge(dropped))", before + "(self.merge(dropped), dx)", before + "(dx, dropped)",
            before + "(dx * 0.5, self.merge(dropped))"} <= set(edits)
    assert not [edit for edit in edits if edit.startswith("return dx * 3") or "wide(x" in edit or "on_host(x" in edit]


def test_a_fault_is_gone_when_it_was_tried():
    backward = LinearItself.backward.__code__
    results = run([target("layers.linear.Linear.backward")], [case("linear", Linear(3, 4, rng=0), x(2, 5, 3))])
    assert LinearItself.backward.__code__ is backward
    assert all(case == "linear" for _, case in results)


def test_a_fault_that_the_cases_do_not_show_is_reported():
    """In sequences of one token, dividing by their length or multiplying with it is the same."""
    results = run([target("heads.pooling.MeanPool.backward")], [case("one-token", MeanPool(), x(3, 1, 4))])
    assert any("dy * count" in line for line in complaints(results, complete=False))


def test_a_listed_fault_that_is_caught_is_reported():
    name = next(iter(EQUIVALENT))
    assert list(complaints([(name, "a")], complete=False)) == [
        f"equivalents.py says that it changes nothing, but [a] catches it: {name}"]
    assert len(list(complaints([], complete=True))) == len(EQUIVALENT)


def test_mutants_of_a_function_differ_from_it_and_from_each_other():
    node = ast.parse("def double_backward(dy):\n    return dy + dy").body[0]
    found = list(mutants(Target("double_backward", lambda dy: dy + dy, node)))
    ones = np.ones(2)
    results = {tuple(run_code(mutant.code, ones)) for mutant in found}
    assert (2.0, 2.0) not in results
    assert len({mutant.edit for mutant in found}) == len(found)


def run_code(code, dy):
    def function(dy):
        return dy
    function.__code__ = code
    return function(dy)


def test_formulas_under_a_decorator_are_reached():
    assert target("ops.relu_backward").function is ops.relu_backward.formula
