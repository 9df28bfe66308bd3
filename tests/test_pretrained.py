"""Models from Hugging Face folders compute what transformers computes with them, and go back as they came."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="the extra `pretrained` is not installed")
from safetensors.numpy import load_file, save_file  # noqa: E402

from tinyenc import LayerNorm, Parameter, PostLNEncoderLayer, Tape, pretrained  # noqa: E402
from tinyenc.attention import DotProduct, SlidingWindow  # noqa: E402
from tinyenc.data import DataError  # noqa: E402
from tinyenc.pretrained.load import FAMILIES  # noqa: E402
from tinyenc.pretrained.names import find_places, take  # noqa: E402

HERE = Path(__file__).parent / "pretrained"
POST_LN = ["bert", "roberta", "electra", "distilbert"]
MODELS = [*POST_LN, "modernbert"]


@pytest.fixture
def folder(tmp_path):
    """A copy of the small BERT's folder, to spoil."""
    shutil.copytree(HERE / "bert", tmp_path / "bert")
    return tmp_path / "bert"


def change_config(folder, **entries):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | entries
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def change_tensors(folder, change):
    """Replace the folder's tensors by change(tensors)."""
    path = folder / "model.safetensors"
    save_file(change({name: np.array(tensor) for name, tensor in load_file(path).items()}), path)


def hidden(model):
    expected = load_file(HERE / "bert" / "expected.safetensors")
    return model.encoder.forward(expected["ids"], expected["mask"], types=expected["types"])


def assert_close(ours, theirs, what=""):
    error = abs(ours - theirs).max() / max(1, abs(theirs).max())
    assert error < 1e-6, f"{what} differs by {error:.1e}"


@pytest.mark.parametrize("family", MODELS)
def test_hidden_states_logits_and_every_gradient_are_those_of_transformers(family):
    model = pretrained.load(HERE / family)
    expected = load_file(HERE / family / "expected.safetensors")
    encoder, head = model.encoder.astype(np.float64), model.head.astype(np.float64)
    types = expected["types"] if encoder.embed.n_types > 1 else None

    tape = Tape()
    states = encoder.forward(expected["ids"], expected["mask"], tape, types)
    logits = head.forward(states, tape)
    encoder.backward(head.backward(expected["dlogits"], tape) + expected["dhidden"], tape)
    assert_close(states, expected["hidden"], "hidden")
    assert_close(logits * expected["mask"][..., None], expected["logits"], "logits")

    names = FAMILIES[family]
    places = find_places(encoder, names.stems(len(encoder.layers)))
    places = {model.prefix + name: where for name, where in places.items()} | find_places(head, names.head)
    placed = [place.parameter for where in places.values() for place in where]
    assert {id(p) for p in placed} == {id(p) for p in [*encoder.parameters(), *head.parameters()]}
    for parameter in placed:
        parameter.data = parameter.grad  # take() reads data
    gradients = {name[5:]: tensor for name, tensor in expected.items() if name.startswith("grad.")}
    assert places.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert_close(take(places[name]), gradient, name)


@pytest.mark.parametrize("family", MODELS)
def test_float32_agrees_with_transformers_to_1e_5(family):
    model = pretrained.load(HERE / family)
    expected = load_file(HERE / family / "expected.safetensors")
    types = expected["types"] if model.encoder.embed.n_types > 1 else None
    states = model.encoder.forward(expected["ids"], expected["mask"], types=types)
    assert states.dtype == np.float32
    assert abs(states - expected["hidden"]).max() < 1e-5


@pytest.mark.parametrize("family", MODELS)
def test_a_saved_model_is_loaded_with_the_same_names_and_bits(tmp_path, family):
    pretrained.save(tmp_path / "copy", pretrained.load(HERE / family))
    before, after = (load_file(at / "model.safetensors") for at in (HERE / family, tmp_path / "copy"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        np.testing.assert_array_equal(after[name], tensor, err_msg=name)
    config = json.loads((HERE / family / "config.json").read_text())
    assert json.loads((tmp_path / "copy" / "config.json").read_text()) == config
    assert pretrained.load(tmp_path / "copy").prefix == pretrained.load(HERE / family).prefix


def test_a_parameter_without_a_name_in_the_file_is_refused_before_anything_is_written(tmp_path):
    model = pretrained.load(HERE / "bert")
    pretrained.save(tmp_path / "old", model)
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    model.encoder.layers[0].ffn.scale = Parameter(np.ones(3, np.float32))
    model.head.scale = Parameter(np.ones(3, np.float32))
    for name, folder in (("layers.0.ffn.scale", "old"), ("layers.0.ffn.scale", "new")):
        with pytest.raises(ValueError, match=f"^the format has no name for {name}, which would be lost$"):
            pretrained.save(tmp_path / folder, model)
    del model.encoder.layers[0].ffn.scale
    with pytest.raises(ValueError, match="^the format has no name for scale, which would be lost$"):
        pretrained.save(tmp_path / "new", model)
    assert {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_saving_over_a_folder_replaces_its_weights(tmp_path):
    model = pretrained.load(HERE / "bert")
    pretrained.save(tmp_path / "copy", model)
    model.encoder.layers[0].ffn.w_1.bias.data += 1
    pretrained.save(tmp_path / "copy", model)
    np.testing.assert_array_equal(hidden(pretrained.load(tmp_path / "copy")), hidden(model))


@pytest.mark.parametrize("family", MODELS)
def test_transformers_reads_a_saved_model_and_gets_the_same_numbers(tmp_path, family):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    hf = pytest.importorskip("transformers", reason="transformers is not installed")
    model = pretrained.load(HERE / family)
    for parameter in [*model.encoder.parameters(), model.head.bias]:
        parameter.data += 0.1
    pretrained.save(tmp_path / "copy", model)
    expected = load_file(HERE / family / "expected.safetensors")
    ids, mask = expected["ids"], expected["mask"]
    ours = model.head(model.encoder(ids, mask)) * mask[..., None]
    given = dict(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))
    theirs = hf.AutoModelForMaskedLM.from_pretrained(tmp_path / "copy")(**given).logits.detach().numpy()
    assert abs(ours - theirs * mask[..., None]).max() < 1e-5 * abs(ours).max()


# J01: names


def legacy(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def with_kernels(tensors):
    return {name.replace("dense.weight", "dense.kernel"): tensor.T.copy() if "dense.weight" in name else tensor
            for name, tensor in tensors.items()}


@pytest.mark.parametrize("change", [
    pytest.param(lambda tensors: {name.removeprefix("bert."): t for name, t in tensors.items()}, id="no-prefix"),
    pytest.param(lambda tensors: {f"model.{name}": t for name, t in tensors.items()}, id="another-prefix"),
    pytest.param(lambda tensors: {legacy(name): t for name, t in tensors.items()}, id="gamma-beta"),
    pytest.param(with_kernels, id="kernel"),
    pytest.param(lambda tensors: {name.replace("predictions.bias", "predictions.decoder.bias"): t
                                  for name, t in tensors.items()}, id="second-name"),
    pytest.param(lambda tensors: {name: t for name, t in tensors.items() if "cls." not in name}, id="no-head"),
    pytest.param(lambda tensors: tensors | {"bert.embeddings.position_ids": np.arange(20)[None],
                                            "bert.pooler.dense.weight": np.ones((16, 16), np.float32),
                                            "cls.seq_relationship.bias": np.ones(2, np.float32)}, id="more"),
])
def test_one_model_under_other_names_is_the_same_to_the_bit(folder, change):
    change_tensors(folder, change)
    np.testing.assert_array_equal(hidden(pretrained.load(folder)), hidden(pretrained.load(HERE / "bert")))


def test_tensors_without_a_place_are_named_and_saved_again(folder, tmp_path):
    extra = {"bert.embeddings.position_ids": np.arange(20)[None], "classifier.bias": np.ones(2, np.float32),
             "norm.num_batches_tracked": np.array(7)}
    change_tensors(folder, lambda tensors: tensors | extra)
    model = pretrained.load(folder)
    assert sorted(model.others) == sorted(extra)
    pretrained.save(tmp_path / "copy", model)
    saved = load_file(tmp_path / "copy" / "model.safetensors")
    for name, tensor in extra.items():
        np.testing.assert_array_equal(saved[name], tensor, strict=True)


def test_files_are_copied_from_where_the_model_came_from_wherever_the_process_goes(folder, tmp_path, monkeypatch):
    (folder / "vocab.txt").write_text("[PAD]\n")
    monkeypatch.chdir(folder.parent)
    model = pretrained.load(folder.name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    pretrained.save("copy", model)
    assert Path("copy", "vocab.txt").read_text() == "[PAD]\n"


def test_files_that_are_gone_are_told_of_and_the_weights_saved(folder, tmp_path):
    model = pretrained.load(folder)
    shutil.rmtree(folder)
    with pytest.warns(RuntimeWarning, match="is gone: its tokenizer's files are not copied$"):
        pretrained.save(tmp_path / "copy", model)
    np.testing.assert_array_equal(hidden(pretrained.load(tmp_path / "copy")), hidden(model))


def test_a_second_name_of_the_table_is_neither_taken_nor_left_over(folder):
    table = {"cls.predictions.decoder.weight": np.zeros((40, 16), np.float32)}
    change_tensors(folder, lambda tensors: table | tensors)
    model = pretrained.load(folder)
    assert model.others == []
    np.testing.assert_array_equal(hidden(model), hidden(pretrained.load(HERE / "bert")))


def test_a_name_given_twice_is_left_over_and_named(folder):
    name = "bert.embeddings.LayerNorm.weight"
    change_tensors(folder, lambda tensors: tensors | {legacy(name): tensors[name] + 1})
    assert len(pretrained.load(folder).others) == 1


# J02, B07, B08, J06: what the config decides


def test_square_weights_are_transposed():
    names = load_file(HERE / "bert" / "model.safetensors")
    weight = pretrained.load(HERE / "bert").encoder.layers[1].attn.w_k.weight.data
    np.testing.assert_array_equal(weight, names["bert.encoder.layer.1.attention.self.key.weight"].T)


@pytest.mark.parametrize("given, eps", [(1e-6, 1e-6), (1e-12, 1e-12), (..., 1e-12)])
def test_every_layer_norm_has_the_eps_of_the_config(folder, given, eps):
    change_config(folder, layer_norm_eps=given)
    model = pretrained.load(folder)
    norms = [layer for part in (model.encoder, model.head) for _, layer in part.named_layers()
             if isinstance(layer, LayerNorm)]
    assert [norm.eps for norm in norms] == [eps] * 6


@pytest.mark.parametrize("name, at_1", [("gelu", 0.8413447460685429), ("gelu_new", 0.8411919906082768),
                                        ("gelu_pytorch_tanh", 0.8411919906082768), ("relu", 1.0)])
def test_activation_is_the_one_that_the_config_names(folder, name, at_1):
    change_config(folder, hidden_act=name)
    for layer in pretrained.load(folder).encoder.layers:
        assert layer.ffn.activation.forward(np.ones(1))[0] == pytest.approx(at_1, abs=1e-12)


@pytest.mark.parametrize("family", POST_LN)
def test_bert_and_its_kin_get_post_ln_layers_and_no_dropout_inside_the_feed_forward(family):
    model = pretrained.load(HERE / family)
    assert all(type(layer) is PostLNEncoderLayer and layer.ffn.drop.p == 0 for layer in model.encoder.layers)
    assert model.encoder.norm is None


def test_dropout_is_that_of_the_config(folder):
    change_config(folder, hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.5)
    model = pretrained.load(folder)
    layer = model.encoder.layers[1]
    assert (model.encoder.embed.drop.p, layer.drop1.p, layer.drop2.p) == (0.25, 0.25, 0.25)
    assert layer.attn.attend.core.dropout.p == 0.5


def test_modernbert_layers_follow_the_config_of_today_and_that_of_before(tmp_path):
    shutil.copytree(HERE / "modernbert", tmp_path / "model")
    expected = [layer.attn.attend.core for layer in pretrained.load(tmp_path / "model").encoder.layers]
    assert [type(core) for core in expected] == [DotProduct, SlidingWindow, SlidingWindow, DotProduct]
    change_config(tmp_path / "model", layer_types=..., rope_parameters=..., global_attn_every_n_layers=2,
                  global_rope_theta=70.0, local_rope_theta=7.0, local_attention=6)
    layers = pretrained.load(tmp_path / "model").encoder.layers
    assert [getattr(layer.attn.attend.core, "width", None) for layer in layers] == [None, 3, None, 3]
    assert [layer.attn.positions.base for layer in layers] == [70, 7, 70, 7]


@pytest.mark.parametrize("entries, message", [
    (dict(layer_types=["full_attention"]), "layer_types is not a list of 4 of full_attention and sliding_attention"),
    (dict(rope_parameters={"full_attention": {"rope_type": "yarn"}}), 'rope_type is "yarn", not "default"'),
    (dict(rope_parameters={"full_attention": 3}), "no object for full_attention"),
    (dict(local_attention=1), "the window width must be at least 1, got 0"),
    (dict(norm_bias=True), "missing embeddings.norm.bias, final_norm.bias, layers.0.mlp_norm.bias"),
    (dict(decoder_bias=False), "decoder_bias is false"),
])
def test_modernbert_config_that_is_wrong_is_one_clear_error(tmp_path, entries, message):
    shutil.copytree(HERE / "modernbert", tmp_path / "model")
    change_config(tmp_path / "model", **entries)
    with pytest.raises(DataError, match=message):
        pretrained.load(tmp_path / "model")


def test_roberta_places_begin_behind_that_of_padding():
    encoder = pretrained.load(HERE / "roberta").encoder
    assert encoder.embed.max_len == 18
    with pytest.raises(ValueError, match="19 is more than max_len 18"):
        encoder.forward(np.full((1, 19), 5))


def test_types_that_the_embeddings_do_not_know_are_refused():
    ids = np.ones((1, 2), int)
    with pytest.raises(ValueError, match="no types"):
        pretrained.load(HERE / "distilbert").encoder.forward(ids, types=ids)
    with pytest.raises(IndexError, match="type id 2 is outside the table of 2 types"):
        pretrained.load(HERE / "bert").encoder.forward(ids, types=ids * 2)
    with pytest.raises(ValueError, match=r"\(1, 3\) do not fit token ids of shape \(1, 2\)"):
        pretrained.load(HERE / "bert").encoder.forward(ids, types=np.zeros((1, 3), int))


# Bad input: one clear error


@pytest.mark.parametrize("entries, message", [
    (dict(hidden_act="swishy"), 'hidden_act is "swishy", not one of gelu, '),
    (dict(model_type="gpt2"), 'model_type is "gpt2", not one of bert, '),
    (dict(model_type=...), "model_type is null"),
    (dict(hidden_size=...), "hidden_size is missing"),
    (dict(hidden_size="16"), 'hidden_size is "16", not a whole number'),
    (dict(hidden_size=10**12), "hidden_size is 1000000000000"),
    (dict(hidden_size=41), "hidden_size is 41, not a whole number from 1 to 40"),
    (dict(num_attention_heads=5), "d_model 16 is not a multiple of n_heads 5"),
    (dict(num_hidden_layers=3), "3 layers, where the file of the weights has 2"),
    (dict(num_hidden_layers=10**8), "num_hidden_layers is 100000000, not"),
    (dict(layer_norm_eps=-1), "layer_norm_eps is -1, not a number above 0"),
    (dict(hidden_dropout_prob=1), "hidden_dropout_prob is 1, not a number in"),
    (dict(position_embedding_type="relative_key"), 'position_embedding_type is "relative_key"'),
    (dict(is_decoder=True), "is_decoder is true"),
    (dict(tie_word_embeddings=False), "tie_word_embeddings is false"),
    (dict(pad_token_id=40), "token id 40 is outside"),
    (dict(vocab_size=39), r"embeddings.word_embeddings.weight has shape \(40, 16\), not \(39, 16\)"),
])
def test_config_that_is_wrong_is_one_clear_error(folder, entries, message):
    change_config(folder, **entries)
    with pytest.raises(DataError, match=message) as error:
        pretrained.load(folder)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)


def test_all_missing_tensors_are_named(folder):
    gone = {"bert.embeddings.LayerNorm.bias", "bert.encoder.layer.1.output.dense.weight"}
    change_tensors(folder, lambda tensors: {name: t for name, t in tensors.items() if name not in gone})
    with pytest.raises(DataError, match="missing embeddings.LayerNorm.bias, encoder.layer.1.output.dense.weight$"):
        pretrained.load(folder)


def test_tensors_of_another_shape_are_named(folder):
    change_tensors(folder, lambda tensors: {name: t[..., :15].copy() if "layer.0.output.dense" in name else t
                                            for name, t in tensors.items()})
    with pytest.raises(DataError, match=r"layer.0.output.dense.weight has shape \(16, 15\), not \(16, 24\); .*bias"):
        pretrained.load(folder)


def test_a_file_of_which_nothing_matches_is_refused(folder):
    change_tensors(folder, lambda tensors: {name.replace("embeddings", "vectors"): t for name, t in tensors.items()})
    with pytest.raises(DataError, match="no tensor is called embeddings.word_embeddings.weight"):
        pretrained.load(folder)


def test_a_file_with_two_models_is_refused(folder):
    change_tensors(folder, lambda tensors: tensors | {f"query.{name}": t for name, t in tensors.items()})
    with pytest.raises(DataError, match="more than one model: tensors begin with 'bert.', 'query.bert.'"):
        pretrained.load(folder)


def test_integers_for_weights_are_refused(folder):
    change_tensors(folder, lambda tensors: tensors | {"bert.embeddings.LayerNorm.bias": np.ones(16, np.int64)})
    with pytest.raises(DataError, match="bert.embeddings.LayerNorm.bias is I64"):
        pretrained.load(folder)


def test_half_precision_becomes_float32(folder):
    change_tensors(folder, lambda tensors: {name: t.astype(np.float16) for name, t in tensors.items()})
    assert {p.data.dtype for p in pretrained.load(folder).encoder.parameters()} == {np.dtype(np.float32)}


def test_pickles_are_refused_and_not_opened(folder):
    marker = folder / "executed"
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch %s'\ntR." % str(marker).encode())
    with pytest.raises(DataError, match="pytorch_model.bin is a pickle"):
        pretrained.load(folder)
    assert not marker.exists()


def test_folders_without_config_or_weights_are_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="no model.safetensors"):
        pretrained.load(folder)
    with pytest.raises(DataError, match="nowhere/config.json: cannot be read: No such file"):
        pretrained.load(folder / "nowhere")


def test_a_model_in_several_files_is_loaded_whole(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = {f"part-{i}.safetensors": dict(list(tensors.items())[i::2]) for i in range(2)}
    for name, part in parts.items():
        save_file(part, folder / name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: file for file, part in parts.items() for name in part}}))
    np.testing.assert_array_equal(hidden(pretrained.load(folder)), hidden(pretrained.load(HERE / "bert")))

    index.write_text(json.dumps({"weight_map": {"a": "../../other.safetensors"}}))
    with pytest.raises(DataError, match="does not name files of this folder"):
        pretrained.load(folder)


# Fuzzing: whatever the bytes, a model or a DataError


def load_or_refuse(folder):
    try:
        pretrained.load(folder)
    except DataError as error:
        assert "\n" not in str(error)


def test_a_file_cut_off_anywhere_is_refused(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for size in [0, 1, 7, 8, 9, len(whole) - 1, *rng.integers(0, len(whole), 40)]:
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match="not a safetensors file"):
            pretrained.load(folder)


def test_any_change_of_header_or_config_gives_a_model_or_a_clear_error(folder):
    rng = np.random.default_rng(1)
    for name, reach in ("model.safetensors", 3000), ("config.json", None):
        whole = (folder / name).read_bytes()
        for _ in range(150):
            spoilt = bytearray(whole)
            for at in rng.integers(0, len(whole[:reach]), rng.integers(1, 4)):
                spoilt[at] = rng.choice([rng.integers(256), ord('"'), ord("9"), ord("{"), ord(",")])
            (folder / name).write_bytes(spoilt)
            load_or_refuse(folder)
        (folder / name).write_bytes(whole)


@pytest.mark.parametrize("header", [
    b'{"a":{"dtype":"F32","shape":[9223372036854775807,9],"data_offsets":[0,4]}}',
    b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}',
    b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
    b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}',
    b'{"__metadata__":{"a":1}}', b"[]", b"{" * 5000, b"",
])
def test_a_hostile_header_is_refused(folder, header):
    for length in (len(header), 2**63, 2**64 - 1):
        (folder / "model.safetensors").write_bytes(length.to_bytes(8, "little") + header + bytes(4))
        with pytest.raises(DataError):
            pretrained.load(folder)
