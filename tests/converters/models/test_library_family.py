"""Model types that an MLX library and transformers share are known without a row of their own."""

import inspect
import json
import subprocess
import sys

import pytest

from weighbridge.converters.maps.sources.choose import map_of
from weighbridge.converters.models.library_family import family_of, in_transformers, text_config
from weighbridge.converters.models.model import Model
from weighbridge.converters.models.signature import causal_signature
from weighbridge.errors import BadInputError, UntrustedError

SIZES = {"vocab_size": 97, "max_position_embeddings": 48}


def model(**config):
    return Model("here", "torch", None, config)


@pytest.mark.parametrize(
    "kind", ["llama", "mixtral", "deepseek_v3", "mamba", "gemma2", "qwen3_moe"]
)
def test_a_language_model_takes_ids_and_gives_logits(kind):
    signature = model(model_type=kind, **SIZES).signature
    (ids,), (logits,) = signature.inputs, signature.outputs
    assert (ids.name, ids.role, dict(ids.upper)) == (
        "input_ids",
        "token_ids",
        {"sequence": 48, "vocabulary": 97},
    )
    assert (logits.name, logits.shape) == ("logits", ("batch", "sequence", 97))


def test_a_model_that_generates_many_tokens_at_once_is_given_a_draft_of_them():
    from transformers import DiffusionGemmaForBlockDiffusion as Theirs

    signature = model(model_type="diffusion_gemma", text_config=SIZES).signature
    ids, draft = (port.name for port in signature.inputs)
    assert (ids, draft) == ("input_ids", "decoder_input_ids")
    assert {ids, draft} < set(inspect.signature(Theirs.forward).parameters)
    assert signature.outputs[0].shape == ("batch", "target", 97)


def test_a_wrapper_has_the_sizes_of_the_language_model_in_it():
    config = {"model_type": "gemma3", "vocab_size": 3, "text_config": SIZES}
    assert model(**config).signature.outputs[0].shape[-1] == 97


def test_an_inner_configuration_that_is_no_object_is_refused():
    with pytest.raises(BadInputError, match="text_config"):
        text_config({"text_config": [1]})


@pytest.mark.parametrize("size", [None, "many", 0, True, 1.5])
def test_a_vocabulary_that_is_no_size_is_refused(size):
    with pytest.raises(BadInputError, match="vocab_size"):
        causal_signature({"vocab_size": size})


def test_a_tabled_family_keeps_its_row():
    assert model(model_type="bert", hidden_size=8, **SIZES).family.map == "bert"


# Classes of transformers that read texts and have no class in an MLX library, and what each gives.
ONLY_TORCH = {
    "albert AlbertForMaskedLM": "logits",
    "bart BartForConditionalGeneration": "logits encoder_last_hidden_state",
    "bart BartModel": "last_hidden_state encoder_last_hidden_state",
    "electra ElectraForSequenceClassification": "logits",
    "electra ElectraModel": "last_hidden_state",
    "m2m_100 M2M100ForConditionalGeneration": "logits encoder_last_hidden_state",
    "marian MarianMTModel": "logits encoder_last_hidden_state",
    "opt OPTForCausalLM": "logits",
    "opt OPTModel": "last_hidden_state",
    "roformer RoFormerForQuestionAnswering": "start_logits end_logits",
    "umt5 UMT5EncoderModel": "last_hidden_state",
}


@pytest.mark.parametrize(("named", "gives"), ONLY_TORCH.items())
def test_a_class_of_texts_that_transformers_alone_has_is_run_as_it_is(named, gives):
    import transformers

    kind, name = named.split()
    made = model(model_type=kind, architectures=[name], d_model=8, hidden_size=8, **SIZES)
    assert (made.family.map, made.library, map_of(made)) == ("", None, None)
    taken = inspect.signature(getattr(transformers, name).forward).parameters
    assert {port.name for port in made.signature.inputs} <= taken.keys()
    assert [port.name for port in made.signature.outputs] == gives.split()


def test_a_class_that_takes_more_than_texts_has_no_such_family():
    config = {"model_type": "voxtral", "architectures": ["VoxtralForConditionalGeneration"]}
    assert family_of({**config, "vocab_size": 9, "audio_config": {"hidden_size": 8}}) is None
    assert family_of({"model_type": "bart", "vocab_size": 9}) is None, "nothing says which class"


def test_a_type_that_one_side_alone_knows_is_no_family():
    assert family_of({"model_type": "albert"}) is None, "transformers has it, no MLX library does"
    assert not in_transformers("rwkv7"), "mlx-lm has it, transformers does not"
    assert family_of({"model_type": "rwkv7"}) is None


def test_every_type_that_both_sides_implement_is_known():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from weighbridge.converters.models.library_family import transformers_types
    from weighbridge.tests.support.atlas.tiny import types

    assert set(types()) <= transformers_types() <= set(CONFIG_MAPPING)


def test_code_in_a_directory_needs_consent_and_a_factory_gives_it():
    asked = {"model_type": "mine", "auto_map": {"AutoModel": "modeling.Mine"}}
    with pytest.raises(UntrustedError):
        _ = model(**asked).family
    assert Model("here", "torch", None, asked, factory=object()).family is None


def test_knowing_a_model_imports_no_framework():
    config = json.dumps({"model_type": "mixtral", **SIZES})
    code = (
        "import sys, json; from weighbridge.converters.models.model import Model;"
        f"print(Model('x', 'torch', None, json.loads('{config}')).signature.outputs[0].name);"
        "print([m for m in ('torch', 'mlx', 'transformers', 'mlx_lm') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[:2] == ["logits", "[]"]
