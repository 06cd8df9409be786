"""Every field of PEFT's LoRA configuration: read here, history, or refused by name.

Source: ``peft/tuners/lora/config.py``, ``LoraConfig``, as of peft 0.21.
"""

from __future__ import annotations

from typing import Any, Final

from ..config import Config

# What an adapter means depends on these, and they are read.
READ: Final = frozenset(
    {"peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"}
    | {"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"}
    | {"target_parameters", "modules_to_save", "fan_in_fan_out", "peft_version"}
)
# These tell how an adapter came about; what it computes does not depend on them.
HISTORY: Final = frozenset(
    {"task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode"}
    | {"lora_dropout", "runtime_config", "qalora_group_size", "eva_config", "loftq_config"}
    | {"corda_config", "lora_ga_config", "megatron_config", "megatron_core"}
)
# Initialisations that leave the base as it is.
INITIALISATIONS: Final = (True, False, None, "gaussian", "eva", "orthogonal")
UNSET: Final[tuple[Any, ...]] = (None, False, "none", [])
# Configurations of variants: an empty one asks for the variant too, with its defaults.
VARIANTS: Final = frozenset(
    {"arrow_config", "kasa_config", "monteclora_config", "use_bdlora", "velora_config"}
)

MERGE: Final = "merge it with PEFT (merge_and_unload) and convert the merged model"
RESAVE: Final = (
    "it moved a part of the base into the adapter; save it again with PEFT's save_pretrained("
    "..., path_initial_model_for_weight_conversion=INITIAL), which makes a plain LoRA of it"
)
ALONE: Final = "it chooses its update as it runs, so only PEFT can run it"
# Methods that learn inputs instead of weights.
PROMPTS: Final = frozenset(
    {"PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT"}
    | {"CPT", "CARTRIDGE"}
)
LEARNED: Final = "it learns inputs and changes no weight, so only PEFT can run it"
# What to do about a field that is set and not read.
ADVICE: Final = {
    "init_lora_weights": RESAVE,
    "bias": f"biases of the base are trained too; {MERGE}",
    "lora_bias": f"the update has a bias of its own; {MERGE}",
    "layer_replication": f"layers of the base are used twice; {MERGE}",
    "trainable_token_indices": f"rows of an embedding are trained too; {MERGE}",
    "ensure_weight_tying": f"a tied embedding is trained together with its head; {MERGE}",
    "use_qalora": f"inputs are averaged in groups; {MERGE}",
    "use_bdlora": f"the factors are block-diagonal; {MERGE}",
    "kasa_config": f"small singular values of the base are cut off; {MERGE}",
    "velora_config": f"train without it, or {MERGE}",
    "monteclora_config": f"the factors are drawn from a distribution; {MERGE}",
    "arrow_config": ALONE,
    "alora_invocation_tokens": ALONE,
}


def refused(config: Config) -> dict[str, str]:
    """Return which fields of CONFIG ask for more than is read, and what to do about each.

    A field that nobody here has heard of must be unset. Of another method than LoRA, whose fields all
    mean something else, the method alone is named.

    >>> list(refused({"peft_type": "LORA", "r": 8, "bias": "all", "init_lora_weights": "pissa"}))
    ['bias', 'init_lora_weights']
    """
    if config.get("peft_type") != "LORA":
        return {"peft_type": LEARNED if config.get("peft_type") in PROMPTS else MERGE}
    rules = {
        "init_lora_weights": config.get("init_lora_weights") in INITIALISATIONS,
        **{field: config.get(field) is None for field in VARIANTS},
    }
    fields = sorted(set(config) - READ - HISTORY | set(rules))
    return {
        field: ADVICE.get(field, MERGE)
        for field in fields
        if not rules.get(field, config.get(field) in UNSET)
    }


def refusals(config: Config) -> list[str]:
    """Return a clause for each field of CONFIG that is refused.

    >>> refusals({"peft_type": "LORA", "bias": "all"})[0].partition(" (")[0]
    'bias=all'
    """
    return [f"{field}={config.get(field)} ({what})" for field, what in refused(config).items()]
