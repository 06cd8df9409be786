"""Tiny models of several types with PEFT adapters on them: what to convert and to merge, as data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from weighbridge.tests.support.atlas import sizes, tiny

ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED: Final = ("gate_proj", "up_proj", "down_proj")


class Case(NamedTuple):
    """A model type and an adapter for it.

    Attributes:
        kind: the ``model_type``.
        cls: the class of transformers that the adapter is made on.
        lora: what ``LoraConfig`` is given; rank and alpha are filled in.
        config: values of the configuration.
    """

    kind: str
    cls: str
    lora: Mapping[str, Any]
    config: Mapping[str, Any] = {}


LLAMA: Final = Case("llama", "LlamaForCausalLM", {"target_modules": [*ATTENTION, *GATED]})
MOE: Final = Case(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    {"target_modules": ["q_proj", "v_proj"], "target_parameters": ["gate_up_proj", "down_proj"]},
)
T5: Final = Case(
    "t5",
    "T5ForConditionalGeneration",
    {"target_modules": ["q", "v", "wi", "wo"]},
    {
        "d_model": 48,
        "d_ff": 80,
        "d_kv": 16,
        "num_heads": 4,
        "decoder_start_token_id": 0,
        "tie_word_embeddings": True,
    },
)
BERT: Final = Case("bert", "BertModel", {"target_modules": ["query", "value", "dense"]})
CASES: Final[Mapping[str, Case]] = {
    "Llama": LLAMA,
    "Llama, DoRA": LLAMA._replace(lora={**LLAMA.lora, "use_dora": True}),
    "Llama, rsLoRA and patterns": LLAMA._replace(
        lora={
            **LLAMA.lora,
            "use_rslora": True,
            "rank_pattern": {"v_proj": 8, "layers.0.mlp.up_proj": 2},
            "alpha_pattern": {"q_proj": 12},
        }
    ),
    "Llama, embedding and head": LLAMA._replace(
        lora={"target_modules": ["embed_tokens", "lm_head", "q_proj"]}
    ),
    "Llama, a module saved whole": LLAMA._replace(
        lora={"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    ),
    "Qwen3-MoE": MOE,
    "Qwen3-MoE, experts down only": MOE._replace(lora={"target_parameters": ["down_proj"]}),
    "GPT-2": Case(  # its head is tied in MLX whatever the configuration says
        "gpt2",
        "GPT2LMHeadModel",
        {"target_modules": ["c_attn", "c_proj", "c_fc"]},
        {"tie_word_embeddings": True},
    ),
    "BERT": BERT,
    "BERT, DoRA": BERT._replace(lora={**BERT.lora, "use_dora": True}),
    "T5": T5,
    "T5, DoRA": T5._replace(lora={**T5.lora, "use_dora": True}),
}


def build(case: Case, folder: Path) -> Any:
    """Save a random model of CASE in FOLDER, float32; return it, in eval mode."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.utils.logging.disable_progress_bar()
    own = {"tie_word_embeddings": False, **sizes.OVERRIDES.get(case.kind, {}), **case.config}
    settings = tiny.filled(CONFIG_MAPPING[case.kind], sizes.TEXT, own)
    torch.manual_seed(0)
    model = getattr(transformers, case.cls)._from_config(settings, attn_implementation="eager")
    model = model.eval().float()
    tiny.perturb(model)
    if case.kind == "t5":  # the scale of its scores lies in the weights
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.mul_(settings.d_kv**-0.5 if name.endswith("Attention.q.weight") else 1)
    save(model, case, folder)
    return model


def save(model: Any, case: Case, folder: Path) -> None:
    """Save MODEL of CASE in FOLDER; GPT-2 as it lies on the hub and mlx-lm reads it, without prefix."""
    from safetensors.numpy import load_file, save_file

    model.save_pretrained(folder)
    if case.kind != "gpt2":
        return
    file = folder / "model.safetensors"
    tensors = {name.removeprefix("transformer."): a for name, a in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})


def adapted(model: Any, case: Case, folder: Path, rank: int = 4, seed: int = 2) -> Any:
    """Put a random adapter of CASE on MODEL and save it in FOLDER; return the PEFT model."""
    import torch
    from peft import LoraConfig, get_peft_model

    noise = torch.Generator().manual_seed(seed)
    peft = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, **case.lora)).eval()
    with torch.no_grad():
        for name, value in peft.named_parameters():
            if "magnitude" in name:
                value.mul_(1 + 0.2 * torch.rand(value.shape, generator=noise))
            elif "lora_" in name:
                value.copy_(0.1 * torch.randn(value.shape, generator=noise))
            elif value.requires_grad:  # saved whole
                value.add_(0.1 * torch.randn(value.shape, generator=noise))
    peft.save_pretrained(folder)
    return peft
