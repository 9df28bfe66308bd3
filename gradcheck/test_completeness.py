"""The cases leave nothing out."""

import numpy as np
import pytest

from tinyenc import BatchNorm, Layer, LayerNorm, MeanPool, MultiHeadAttention

from . import completeness
from .cases import PADDING, TOKENS, case, x
from .completeness import EXEMPT, all_cases, layer_classes, mask_kinds, missing


def test_every_layer_is_checked_in_every_mode():
    assert missing(layer_classes(), all_cases()) == []


def test_no_exemption_is_out_of_date():
    classes = {c.__name__: c for c in layer_classes()}
    for name, _ in EXEMPT:
        assert name in classes


def test_a_layer_without_a_case_is_named():
    class Forgotten(Layer):
        def forward(self, x, tape):
            return x

    assert missing([Forgotten], all_cases()) == ["Forgotten: no case"]


def test_a_batch_of_one_is_not_enough():
    left = "LayerNorm: no x with a batch and a length above one and no two axes of one size"
    assert missing([LayerNorm], [case("a", LayerNorm(4), x(1, 3, 4))]) == [left]
    assert missing([LayerNorm], [case("a", LayerNorm(4), x(2, 3, 4))]) == []


def test_a_parameter_without_effect_in_any_case_is_named():
    nothing = case("nothing", LayerNorm(4), np.ones((2, 3, 4)))
    assert "LayerNorm: weight has no effect in any case" in missing([LayerNorm], [nothing])


def test_a_mask_without_effect_in_any_case_is_named():
    named = "BatchNorm: mask has no effect in any case"
    without = case("inference", BatchNorm(4), x(3, 5, 4), mask=PADDING)  # by its running statistics
    assert named in missing([BatchNorm], [without])
    assert named not in missing([BatchNorm], [without, without._replace(seed=1)])


def test_a_gradient_that_is_nothing_but_rounding_is_no_effect(monkeypatch):
    monkeypatch.setattr(completeness, "ZERO", ("no such name",))
    rounded = case("rounded", MultiHeadAttention(8, 2, rng=0), x(3, 5, 8), x(3, 6, 8))
    assert rounded.checker().probe.analytic()["w_k.bias"].any()
    assert "MultiHeadAttention: w_k.bias has no effect in any case" in missing([MultiHeadAttention], [rounded])


def test_each_kind_of_mask_is_asked_for():
    attention = MultiHeadAttention(8, 2, 0.3, rng=0)
    lines = missing([MultiHeadAttention], [case("a", attention, x(3, 5, 8), x(3, 6, 8), seed=1)])
    assert [line.split(": ", 1)[1] for line in lines] == [
        "mask is never given", "mask: padding", "mask: empty row", "mask: per query", "mask: packed", "dropout: off"]
    assert missing([MeanPool], [case("a", MeanPool(), x(3, 5, 4), mask=TOKENS)]) == ["MeanPool: mask: none"]


@pytest.mark.parametrize("mask, kinds", [(None, {"none"}), (PADDING, {"padding", "empty row"}),
                                         (np.tri(3, dtype=bool)[None, None], {"padding", "per query"}),
                                         (np.ones((2, 3), int), set())])
def test_kinds_of_masks(mask, kinds):
    assert mask_kinds(mask) == kinds
