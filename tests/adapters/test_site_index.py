import pytest

from tensorrt_lora.adapters.site_index import SiteIndex
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.lora_site import LoraSite
from tests.support.tiny_adapters import find_sites
from tests.support.tiny_models import make_tiny_model

_ATTENTION, _MLP = "layers.0.self_attn", "layers.1.mlp"


def _leaves(found: tuple[LoraSite, ...]) -> list[str]:
    return [site.hf_name.rpartition(".")[2] for site in found]


@pytest.fixture(scope="module")
def plain_mlp():
    return find_sites(make_tiny_model("arcee"))


def test_a_split_name_is_one_site(sites):
    (found,) = SiteIndex(sites, LoraConfig()).resolve(f"{_ATTENTION}.q_proj")
    assert found == sites["model.layers.0.self_attn.q_proj"]


def test_a_fused_name_is_its_parts_in_the_order_of_the_rows(sites):
    index = SiteIndex(sites, LoraConfig())
    assert _leaves(index.resolve(f"{_ATTENTION}.qkv_proj")) == ["q_proj", "k_proj", "v_proj"]
    assert _leaves(index.resolve(f"{_MLP}.gate_up_proj")) == ["gate_proj", "up_proj"]


def test_the_swap_flag_turns_gate_and_up_alone(sites):
    index = SiteIndex(sites, LoraConfig(swap_gate_up_proj_lora_b_weight=False))
    assert _leaves(index.resolve(f"{_MLP}.gate_up_proj")) == ["up_proj", "gate_proj"]
    assert _leaves(index.resolve(f"{_ATTENTION}.qkv_proj")) == ["q_proj", "k_proj", "v_proj"]


def test_mapped_names_are_found_beside_the_models_own(sites):
    name_map = {"attn_qkv": "Wqkv", "mlp_h_to_4h": "w1", "attn_dense": "out"}
    index = SiteIndex(sites, LoraConfig(trtllm_modules_to_hf_modules=name_map))
    assert _leaves(index.resolve(f"{_ATTENTION}.Wqkv")) == ["q_proj", "k_proj", "v_proj"]
    assert _leaves(index.resolve(f"{_ATTENTION}.out")) == ["o_proj"]
    assert _leaves(index.resolve(f"{_MLP}.w1")) == ["gate_proj"]
    assert _leaves(index.resolve(f"{_MLP}.gate_proj")) == ["gate_proj"]
    assert index.resolve(f"{_ATTENTION}.qkv_proj") == ()
    assert index.resolve(f"{_ATTENTION}.w1") == ()


def test_a_gated_adapter_never_binds_to_a_plain_mlp(plain_mlp):
    index = SiteIndex(plain_mlp, LoraConfig())
    assert index.resolve("layers.0.mlp.gate_proj") == ()
    assert index.resolve("layers.0.mlp.gate_up_proj") == ()
    assert _leaves(index.resolve("layers.0.mlp.up_proj")) == ["up_proj"]
    expected = "self_attn.q_proj, self_attn.k_proj, self_attn.v_proj, self_attn.o_proj, mlp.up_proj, mlp.down_proj"
    assert index.explain("layers.0.mlp.gate_proj") == f"no such module in this model; adapters may name {expected}"


@pytest.mark.parametrize("narrowed", [False, True])
def test_modules_that_the_engine_leaves_out_are_not_found(sites, narrowed):
    config = LoraConfig(lora_target_modules=["attn_q", "mlp_gate_up"])
    kept = {name: site for name, site in sites.items() if name.endswith(("q_proj", "gate_proj", "up_proj"))}
    index = SiteIndex(kept if narrowed else sites, config)
    assert index.leaves == ["self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj"]
    assert index.resolve(f"{_ATTENTION}.o_proj") == ()
    targets = "lora_target_modules=['attn_q', 'mlp_gate_up']"
    assert index.explain(f"{_ATTENTION}.o_proj") == f"{targets} leaves o_proj out; add 'attn_dense'"
    assert index.explain(f"{_ATTENTION}.qkv_proj") == f"{targets} leaves qkv_proj out; add 'attn_qkv'"


def test_what_is_not_found_is_explained(sites):
    index = SiteIndex(sites, LoraConfig())
    assert index.explain("layers.7.self_attn.q_proj").startswith("layer 7 does not exist, the model has 0 to 1")
    layers = "'attn_q', 'attn_k', 'attn_v', 'attn_dense', 'mlp_h_to_4h', 'mlp_4h_to_h', 'mlp_gate'"
    assert index.must_be_named("lm_head") and index.must_be_named("embed_tokens")
    assert not index.must_be_named("layers.0.self_attn.q_proj")
    assert index.explain_unnamed(["embed_tokens", "lm_head"]) == (
        "LoRA on embed_tokens and lm_head is served where lora_target_modules names it; "
        f"set lora_target_modules=[{layers}, 'embed_tokens', 'lm_head']"
    )
    assert index.explain("unembed_tokens").startswith("this is another name for lm_head; rename it")
    assert index.explain("visual.blocks.0.attn.qkv").startswith("no such module in this model; adapters may name")
    assert index.explain(f"layers.{'9' * 6000}.x").startswith("no such module in this model")


def test_the_same_file_binds_to_a_model_inside_a_wrapper(sites):
    wrapped = {name.replace("model.", "model.language_model.", 1): site for name, site in sites.items()}
    assert SiteIndex(wrapped, LoraConfig()).resolve(f"{_ATTENTION}.q_proj") == (
        sites["model.layers.0.self_attn.q_proj"],
    )
