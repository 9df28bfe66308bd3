import numpy as np
import pytest
from support import gradients, padded_batch, random, small_classifier

from tinyenc import NO_TAPE, CrossEntropy, Dropout, Layer, LayerNorm, Linear, Tape


def test_pop_returns_what_was_pushed_last_in_first_out():
    tape, a, b = Tape(), Linear(2, 2), Linear(2, 2)
    tape.push(a, 1, "one")
    tape.push(b)
    assert len(tape) == 2
    assert tape.pop(b) == ()
    assert tape.pop(a) == (1, "one")
    assert len(tape) == 0


def test_backward_without_forward_names_the_layer():
    with pytest.raises(RuntimeError, match="LayerNorm.backward finds the tape empty"):
        LayerNorm(4).backward(np.ones((1, 4)), Tape())


def test_backward_out_of_order_names_both_layers_and_keeps_the_record():
    tape, linear, drop = Tape(), Linear(3, 3, rng=0), Dropout(0.1)
    x = random(2, 3, dtype=np.float32)
    drop.forward(linear.forward(x, tape), tape)
    with pytest.raises(RuntimeError, match="next is Dropout, not Linear"):
        linear.backward(x, tape)
    linear.backward(drop.backward(x, tape), tape)  # the mistake can still be put right
    assert len(tape) == 0


def test_two_layers_of_one_kind_are_told_apart():
    tape, first, second = Tape(), LayerNorm(4), LayerNorm(4)
    second.forward(first.forward(random(2, 4), tape), tape)
    with pytest.raises(RuntimeError, match="reverse"):
        first.backward(random(2, 4), tape)


def test_no_tape_saves_nothing_and_drops_nothing():
    x = random(4, 8)
    assert Dropout(0.9).forward(x, NO_TAPE) is x
    Linear(8, 3, rng=0)(x)
    assert len(NO_TAPE) == 0


def test_tape_without_seed_has_no_dropout():
    assert Tape().next_seed() is None
    assert Tape(seed=0).next_seed() is not None  # 0 is a seed too


def test_tape_with_the_same_seed_gives_the_same_masks_and_each_mask_its_own_seed():
    a, b, c = Tape(seed=5), Tape(seed=5), Tape(seed=6)
    seeds = [a.next_seed() for _ in range(20)]
    assert seeds == [b.next_seed() for _ in range(20)]
    assert len(set(seeds)) == 20
    assert c.next_seed() not in seeds


def test_fork_draws_its_own_masks_and_keeps_what_its_parent_keeps():
    tape = Tape(seed=1)
    a, b = tape.fork(), tape.fork()
    assert a.next_seed() != b.next_seed()
    assert Tape().fork().next_seed() is None
    aside = NO_TAPE.fork()
    aside.push(Linear(2, 2), np.ones(3))
    assert len(aside) == 0


def test_nbytes_counts_each_array_once_and_a_view_as_its_base():
    tape, layer = Tape(), Layer()
    x = np.zeros(100)  # 800 bytes
    tape.push(layer, x, x[::2])
    tape.push(layer, [x.reshape(10, 10), (np.zeros(5, np.float32),)])
    assert tape.nbytes == 820
    assert [n for _, n in tape.ledger()] == [800, 20]
    tape.pop(layer)
    assert tape.nbytes == 800


def test_memory_falls_as_backward_proceeds():
    model, tape, loss_fn = small_classifier(), Tape(), CrossEntropy()
    ids, mask = padded_batch([5, 3])
    loss_fn.forward(model.forward(ids, mask, tape), np.array([0, 1]), tape)
    held, seen = tape.nbytes, []
    for layer in model.encoder.layers:
        layer.backward = lambda dy, tape, backward=layer.backward: seen.append(tape.nbytes) or backward(dy, tape)
    model.backward(loss_fn.backward(1.0, tape), tape)
    assert held > seen[0] > seen[1] > 0 and tape.nbytes == 0


# F04
def test_two_forwards_then_backward_of_the_second_uses_only_the_seconds_records():
    layer, x1, x2, dy = Linear(3, 2, rng=0).astype(np.float64), random(4, 3), random(4, 3, seed=1), random(4, 2)
    tape = Tape()
    layer.forward(x1, tape)
    layer.forward(x2, tape)
    layer.backward(dy, tape)
    np.testing.assert_allclose(layer.weight.grad, x2.T @ dy, rtol=1e-13)


def test_layer_used_twice_gets_the_gradient_of_both_uses():
    layer, x, dy = Linear(3, 3, rng=0).astype(np.float64), random(4, 3), random(4, 3, seed=1)
    tape = Tape()
    h = layer.forward(x, tape)
    layer.forward(h, tape)
    layer.backward(layer.backward(dy, tape), tape)
    expected = h.T @ dy + x.T @ (dy @ layer.weight.data.T)
    np.testing.assert_allclose(layer.weight.grad, expected, rtol=1e-12)


def test_whole_training_step_leaves_the_tape_empty():
    ids, mask = padded_batch([4, 2, 0])
    gradients(small_classifier(dropout=0.1), ids, mask, [0, 1, 2], seed=1)  # asserts it
