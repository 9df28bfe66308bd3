import numpy as np
import pytest
from support import random, shaken

from tinyenc import NO_TAPE, EncoderLayer, Layer, MultiHeadAttention, Tape, causal_mask, padding_mask
from tinyenc.attention import DotProduct, LinearAttention
from tinyenc.attention.layout import Packing
from tinyenc.distance import RelativeBias, distances
from tinyenc.positions import Positions


# A08
def test_merging_heads_joins_the_parts_of_each_token():
    heads = np.array([["ab", "cd"], ["ef", "gh"]]).view("U1").reshape(2, 2, 2)  # (H, T, K)
    merged = MultiHeadAttention(4, 2).merge(heads)
    assert ["".join(token) for token in merged] == ["abef", "cdgh"]


# A08
def test_splitting_gives_each_head_a_slice_of_the_width():
    heads = MultiHeadAttention(4, 2).split(np.arange(12).reshape(3, 4))
    assert heads[0].tolist() == [[0, 1], [4, 5], [8, 9]]
    assert heads[1].tolist() == [[2, 3], [6, 7], [10, 11]]


def test_merge_undoes_split():
    x, attn = random(2, 5, 12), MultiHeadAttention(12, 3)
    assert np.array_equal(attn.merge(attn.split(x)), x)


def layer_of_sines():
    layer, n = MultiHeadAttention(4, 2).astype(np.float64), np.arange(16).reshape(4, 4)
    for c, (part, step) in enumerate([(layer.w_q, 0.3), (layer.w_k, 0.5), (layer.w_v, 0.7), (layer.w_o, 0.9)]):
        part.weight.data[...] = np.sin(step * n + c).T  # the case's weights are (out, in)
        part.bias.data[...] = 0.1 * np.cos((c + 1) * np.arange(4))
    return layer


# A08
@pytest.mark.parametrize("view", ["contiguous", "transposed", "strided", "Fortran"])
def test_whole_layer_gives_the_known_numbers_for_any_memory_layout(view):
    layer, x, tape = layer_of_sines(), np.sin(0.37 * np.arange(24)).reshape(2, 3, 4), Tape()
    x = {"contiguous": x, "transposed": np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2),
         "strided": np.repeat(x, 2, axis=2)[..., ::2], "Fortran": np.asfortranarray(x)}[view]
    mask = padding_mask(np.array([[1, 1, 1], [1, 1, 0]]))
    y = layer.forward(x, x, mask, tape)
    dquery, dmemory = layer.backward(np.ones((2, 3, 4)), tape)
    dx = dquery + dmemory
    for actual, expected in [
        (y[0, 0], [0.556391244180048, -0.5923477289374784, 0.4742122914227795, -0.2652346401795457]),
        (y[1, 2], [-0.17701651087894618, -0.42984515347981544, 0.9161689420465056, -1.2203939078405641]),
        (dx[0, 0], [0.5337919945039163, 0.30419791438061206, -0.04107605232987163, -0.3670722456659703]),
        (dx[1, 2], [0.04432920613403969, 0.02794979413162421, 0.00907371026093898, -0.010612901123567354]),
        (layer.w_v.weight.grad.sum(), 6.530200621001596),
        (abs(layer.w_q.weight.grad).sum(), 1.1389188593051764),
    ]:
        np.testing.assert_allclose(actual, expected, rtol=1e-11)


# A10
@pytest.mark.parametrize("n_heads", [6, 0, -8])
def test_width_that_heads_do_not_divide_is_refused_at_construction(n_heads):
    for make in MultiHeadAttention, lambda d, h: EncoderLayer(d, h, 64):
        with pytest.raises(ValueError, match=f"^d_model 512 is not a multiple of n_heads {n_heads}$"):
            make(512, n_heads)


# A10
def test_1600_wide_with_25_heads_builds():
    assert MultiHeadAttention(1600, 25).split(np.zeros((1, 2, 1600), np.float32)).shape == (1, 25, 2, 64)


# A01
def test_query_that_may_see_nothing_gets_the_output_bias():
    layer, x = shaken(MultiHeadAttention(8, 2, rng=0)).astype(np.float64), random(2, 3, 8)
    mask = np.ones((2, 1, 3, 3), bool)
    mask[1, 0, 2] = False
    y = layer(x, x, mask)
    np.testing.assert_allclose(y[1, 2], layer.w_o.bias.data, rtol=1e-15)


def test_cross_attention_takes_a_memory_of_another_length():
    layer, mask, tape = MultiHeadAttention(8, 2, rng=0).astype(np.float64), padding_mask([5, 2]), Tape()
    x, memory = random(2, 3, 8), random(2, 5, 8)
    y = layer.forward(x, memory, mask, tape)
    dquery, dmemory = layer.backward(random(2, 3, 8, seed=1), tape)
    assert y.shape == dquery.shape == x.shape and dmemory.shape == memory.shape
    assert not dmemory[1, 2:].any() and dmemory[1, :2].all()
    np.testing.assert_allclose(y[1], layer(x[1:], memory[1:, :2])[0], rtol=1e-12)


def test_queries_reach_the_output_through_the_weights_alone():
    layer, x = shaken(MultiHeadAttention(8, 2, rng=0)).astype(np.float64), random(2, 5, 8)
    memory = random(2, 5, 8, seed=1)
    layer.w_q.weight.data[...] = layer.w_q.bias.data[...] = 0  # all keys weigh the same
    mean = layer.w_o(layer.w_v(memory).mean(axis=1, keepdims=True))
    np.testing.assert_allclose(layer(x, memory), np.broadcast_to(mean, (2, 5, 8)), rtol=1e-11)


# A13
def test_causal_mask_hides_the_future_exactly():
    layer, x = MultiHeadAttention(8, 2, rng=0).astype(np.float64), random(1, 6, 8)
    changed = x.copy()
    changed[0, 4] += 1
    before, after = layer(x, x, causal_mask(6)), layer(changed, changed, causal_mask(6))
    assert np.array_equal(before[0, :4], after[0, :4])
    assert (before[0, 4:] != after[0, 4:]).all()


@pytest.mark.parametrize("shape", [(2, 3), (3, 3), (2, 3, 3), (2, 1, 3, 5), (3, 1, 3, 3), (2, 4, 3, 3)])
def test_mask_of_a_wrong_shape_is_refused_before_any_work(shape):
    layer, x, tape = MultiHeadAttention(8, 2, rng=0), random(2, 3, 8, dtype=np.float32), Tape()
    with pytest.raises(ValueError) as error:
        layer.forward(x, x, np.ones(shape, bool), tape)
    assert str(shape) in str(error.value) and "(2, 2, 3, 3)" in str(error.value)
    assert len(tape) == 0


# A04
def test_float_mask_is_refused():
    layer, x = MultiHeadAttention(8, 2, rng=0), random(2, 3, 8, dtype=np.float32)
    with pytest.raises(TypeError, match="got float32"):
        layer.forward(x, x, np.ones((2, 1, 1, 3), np.float32))


def test_core_given_is_the_one_that_attends():
    class Zero(Layer):
        def forward(self, q, k, v, mask=None, bias=None, tape=NO_TAPE):
            return np.zeros_like(q)

    layer, x = shaken(MultiHeadAttention(8, 2, attend=Zero(), rng=0)), random(2, 3, 8, dtype=np.float32)
    assert (layer(x, x) == layer.w_o.bias.data).all()


@pytest.mark.parametrize("query, memory", [((2, 9, 8), (5, 9, 8)), ((3, 9, 8), (2, 9, 8)), ((3, 9, 8), (1, 4, 8))])
def test_memory_of_another_batch_size_is_refused_before_any_work(query, memory):
    layer, tape = MultiHeadAttention(8, 2, rng=0), Tape()
    with pytest.raises(ValueError) as error:
        layer.forward(random(*query, dtype=np.float32), random(*memory, dtype=np.float32), None, tape)
    assert str(error.value) == f"query {query} and memory {memory} are not batches of one size"
    assert len(tape) == 0


@pytest.mark.parametrize("n_queries, n_keys", [(10, 10), (8, 10), (10, 8), (7, 7)])
def test_packed_tokens_that_do_not_fit_their_packing_are_refused(n_queries, n_keys):
    x, packing = random(10, 8, dtype=np.float32), Packing(np.arange(5) < np.array([5, 3])[:, None])
    with pytest.raises(ValueError, match=f"^{n_queries} queries and {n_keys} keys, packed, do not fit a Packing of 8"):
        MultiHeadAttention(8, 2, rng=0)(x[:n_queries], x[:n_keys], packing)


@pytest.mark.parametrize("attend", [DotProduct, 0.1, "tiled", lambda: DotProduct()])
def test_what_is_no_core_is_refused(attend):
    with pytest.raises(TypeError, match="^attend must be an attention core, as DotProduct[(][)] is one, got "):
        MultiHeadAttention(8, 2, attend=attend)


def test_positions_of_ones_own_are_refused_with_a_core_that_takes_no_bias():
    class Near(Positions):
        def bias(self, n_tokens, q, tape=NO_TAPE):
            return RelativeBias(np.tile(-abs(distances(n_tokens, n_tokens)), (2, 1)).astype(q.dtype))

    x = random(1, 4, 8, dtype=np.float32)
    with pytest.raises(ValueError, match="^Near is a bias on the scores, and LinearAttention does not say"):
        MultiHeadAttention(8, 2, attend=LinearAttention(), positions=Near(), rng=0)(x, x)
    attention = MultiHeadAttention(8, 2, positions=Near(), rng=0)
    near = attention(x, x)
    attention.positions = Positions()
    assert abs(near - attention(x, x)).max() > 1e-3


def test_core_that_leaves_something_on_the_tape_is_named():
    class Untidy(DotProduct):
        def forward(self, q, k, v, mask=None, bias=None, tape=NO_TAPE):
            tape.push(self, q)
            return super().forward(q, k, v, mask, bias, tape)

    layer, x, tape = MultiHeadAttention(8, 2, attend=Untidy(), rng=0), random(2, 3, 8, dtype=np.float32), Tape()
    y = layer.forward(x, x, None, tape)
    with pytest.raises(RuntimeError, match="1 records are left on the tape, the last one of Untidy"):
        layer.backward(y, tape)
