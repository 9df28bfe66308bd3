import numpy as np
import pytest
from support import gradients, padded_batch, small_classifier

from tinyenc import Embedding, Linear, init
from tinyenc.layers import LayerNorm


# J02
def test_xavier_has_the_deviation_of_its_fans_whichever_way_the_array_is_stored():
    expected = (2 / (768 + 3072)) ** 0.5  # 0.0228
    limit = (6 / (768 + 3072)) ** 0.5
    for weight in init.xavier_uniform(768, 3072, 0), init.xavier_uniform(3072, 768, 0):
        assert weight.std() == pytest.approx(expected, rel=0.005)
        assert abs(weight.mean()) < 1e-4
        assert 0.999 * limit < abs(weight).max() <= limit * (1 + 1e-6)
    assert init.xavier_uniform(768, 3072, 0).shape == (768, 3072)


def test_normal_has_the_deviation_asked_for():
    weight = init.normal((1000, 300), 0.02, rng=0)
    assert weight.shape == (1000, 300) and weight.dtype == np.float32
    assert weight.std() == pytest.approx(0.02, rel=0.01)


def test_initial_values_are_float32():
    for array in init.xavier_uniform(3, 2), init.normal((3, 2)), init.zeros(3), init.ones(3):
        assert array.dtype == np.float32


def test_linear_starts_with_xavier_weights_and_no_bias():
    layer = Linear(30, 50, rng=3)
    assert np.array_equal(layer.weight.data, init.xavier_uniform(30, 50, 3))
    assert layer.bias.data.shape == (50,) and not layer.bias.data.any()
    assert Linear(3, 5, bias=False).bias is None


def test_norm_starts_as_the_identity_on_normed_rows():
    norm = LayerNorm(7)
    assert (norm.weight.data == 1).all() and not norm.bias.data.any()


def test_embedding_vectors_start_with_unit_variance_after_their_scale():
    scaled = Embedding(2000, 64, scale=8.0, rng=0)
    assert scaled(np.arange(2000)).std() == pytest.approx(1, rel=0.01)
    assert Embedding(2000, 64, rng=0)(np.arange(2000)).std() == pytest.approx(0.02, rel=0.01)


# K08
def test_same_seed_gives_bit_identical_models_and_another_seed_other_ones():
    one, two, three = (small_classifier(seed=s).state_dict() for s in (4, 4, 5))
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert not any(np.array_equal(one[name], three[name]) for name in one)


# K08
def test_layers_of_one_model_do_not_start_alike():
    state = small_classifier().state_dict()
    matrices = [a for name, a in state.items() if name.endswith("weight") and a.shape == (16, 16)]
    assert len(matrices) == 8
    assert not any(np.array_equal(a, b) for i, a in enumerate(matrices) for b in matrices[:i])


# K08
def test_numpys_global_random_state_is_neither_read_nor_changed():
    ids, mask = padded_batch([5, 3])
    results = []
    for seed in 1, 2:
        np.random.seed(seed)  # noqa: NPY002
        np.random.rand(seed)  # noqa: NPY002
        before = np.random.get_state()  # noqa: NPY002
        results.append(gradients(small_classifier(dropout=0.1), ids, mask, [0, 1], seed=7))
        after = np.random.get_state()  # noqa: NPY002
        assert before[0] == after[0] and np.array_equal(before[1], after[1]) and before[2:] == after[2:]
    (loss1, grads1), (loss2, grads2) = results
    assert loss1 == loss2
    assert all(np.array_equal(grads1[name], grads2[name]) for name in grads1)


# K08
def test_two_models_in_one_process_do_not_disturb_each_other():
    ids, mask = padded_batch([5, 3])
    alone = gradients(small_classifier(dropout=0.1), ids, mask, [0, 1], seed=7)
    one = small_classifier(dropout=0.1)
    other = small_classifier(dropout=0.1, seed=9)
    gradients(other, ids, mask, [0, 1], seed=3)
    beside = gradients(one, ids, mask, [0, 1], seed=7)
    assert alone[0] == beside[0]
    assert all(np.array_equal(alone[1][name], beside[1][name]) for name in alone[1])


def test_generator_given_is_drawn_from_and_shared():
    rng = np.random.default_rng(0)
    first, second = Linear(3, 3, rng=rng), Linear(3, 3, rng=rng)
    assert not np.array_equal(first.weight.data, second.weight.data)
    assert np.array_equal(first.weight.data, Linear(3, 3, rng=0).weight.data)
