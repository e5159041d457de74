"""Decoders of transformers with adapters of peft, as users have them."""

import copy
import json
import math

import pytest
import torch
from safetensors.torch import load_file

import idiolect as il
from idiolect.cli.main import main
from idiolect.core.knobs import SettingError

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

WORDS = 40
SPEAKERS = {
    f"speaker-{k}": [" ".join(chr(97 + (i * k + j) % 26) for j in range(9)) for i in range(8)]
    for k in range(1, 4)
}


def letters(text):
    return [max(0, ord(letter) - 96) for letter in text]


def speakers(**options):
    return il.Federation.from_texts(SPEAKERS, letters, length=12, vocabulary=WORDS, **options)


def llama():
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
        use_cache=True,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2(dropout=0.0):
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_layer=2,
        n_embd=16,
        n_head=2,
        n_positions=16,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def with_lora(base, rank=4, **options):
    """The base with LoRA at its attention, as peft makes it."""
    is_gpt2 = isinstance(base, transformers.GPT2LMHeadModel)
    options.setdefault("target_modules", ["c_attn"] if is_gpt2 else ["q_proj", "v_proj"])
    config = peft.LoraConfig(r=rank, fan_in_fan_out=is_gpt2, task_type="CAUSAL_LM", **options)
    return peft.get_peft_model(base, config)


@pytest.fixture(autouse=True)
def same_weights():
    torch.manual_seed(0)


def base_pointers(module):
    return {n: p.data_ptr() for n, p in module.named_parameters() if not p.requires_grad}


# -- training ------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_decoder_with_its_default_cache_trains_its_adapters_alone(make):
    model = with_lora(make())
    assert model.config.use_cache
    before = copy.deepcopy(model.state_dict())
    task = il.Task(model)
    assert task.d == sum(p.numel() for p in model.parameters() if p.requires_grad)
    short, longer = (
        il.run("fedit:lr=1,steps=5", task, speakers(), rounds=rounds, batch=4) for rounds in (1, 8)
    )
    assert longer.summary()["loss"]["mean"] < short.summary()["loss"]["mean"]
    assert longer.summary()["values"]["up"] == 8 * 3 * task.d
    for name, t in model.state_dict().items():
        assert torch.equal(t, before[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_copy_of_the_base_is_made(dtype):
    model = with_lora(llama().to(dtype))
    base = base_pointers(model)
    task = il.Task(model)
    result = il.run("ditto:steps=1,personal_steps=1", task, speakers(), rounds=1, batch=4)
    assert result.record.kernel == "rows"
    kernel = result.session().contract.task._kernel
    modules = [kernel.original, *(row.module for row in kernel.row_modules)]
    modules += [task.module, *(result.personal(name) for name in SPEAKERS)]
    for module in modules:
        assert base_pointers(module) == base
        assert {p.dtype for p in module.parameters() if not p.requires_grad} == {dtype}
        assert {p.dtype for p in module.parameters() if p.requires_grad} == {torch.float32}


def test_dropout_and_embeddings_of_peft_train():
    places = {"target_modules": ["c_attn", "wte"], "modules_to_save": ["ln_f"]}
    model = with_lora(gpt2(dropout=0.1), lora_dropout=0.1, **places)
    result = il.run("fedit:steps=1", model, speakers(), rounds=1, batch=4)
    assert math.isfinite(result.summary()["loss"]["mean"])


def test_adapters_initialised_anew_start_as_the_same_function():
    task = il.Task(with_lora(llama()))
    rows = task.draw(il.core.streams.name_keys(("a", "b")))
    inputs = {"input_ids": torch.randint(0, WORDS, (3, 5))}
    base = task.outputs_of_one(task.x0, inputs)["logits"]
    for row in rows:
        torch.testing.assert_close(task.outputs_of_one(row, inputs)["logits"], base)
    assert not torch.equal(rows[0], rows[1])


# -- words for parts -----------------------------------------------------------------------------
def test_the_parts_of_a_model_of_peft_have_words():
    task = il.Task(with_lora(gpt2(), target_modules=["c_attn", "wte"], modules_to_save=["ln_f"]))
    words = task.layout.parts.words
    assert set(words["adapter"]) == set(task.layout.names)
    assert len(words["lora_A"]) == len(words["lora_B"]) == 3
    assert len(words["adapter"]) == 8  # and the norm that is saved: scale and shift
    first, second = (task.split(part).w for part in ("block:1", "block:2"))
    assert len(first) == len(second) == 4 * (16 + 48) and not set(first.tolist()) & set(
        second.tolist()
    )


def test_the_methods_of_lora_send_what_they_share():
    task = il.Task(with_lora(llama(), rank=2))
    a, b = (len(task.split(part).w) for part in ("lora_A", "lora_B"))
    sizes = {"fedit": a + b, "fedsa-lora": a, "ffa-lora": b, "dual-lora": (a + b) // 2}
    for name, size in sizes.items():
        assert sum(il.make_method(name).message(task).values()) == size


# -- figures -------------------------------------------------------------------------------------
def test_perplexity_and_accuracy_are_those_of_a_plain_loop_over_real_tokens():
    data = il.Federation.from_texts(
        {
            user: [(text[: 2 * k + 1], text[2 * k + 1 :]) for k, text in enumerate(texts)]
            for user, texts in SPEAKERS.items()
        },
        letters,
        length=16,
        vocabulary=WORDS,
        test=0.5,
    )
    result = il.run(
        "local:lr=0.5,steps=3", with_lora(llama()), data, rounds=2, batch=4, metrics="perplexity"
    )
    total, hits, count = 0.0, 0, 0
    for row in result.clients_table():
        module = result.personal(row["client"])
        inputs, targets = data.part(data.position(row["client"]), "test")
        own = []
        for ids, mask, words in zip(*inputs.values(), targets, strict=True):
            length = int(mask.sum())
            with torch.no_grad():
                scores = module(input_ids=ids[None, :length]).logits[0].double()
            for at in range(length):
                if words[at] != -100:
                    own.append(-scores[at].log_softmax(-1)[words[at]].item())
                    hits += int(scores[at].argmax() == words[at])
        total += sum(own)
        count += len(own)
        assert row["test_perplexity"] == pytest.approx(math.exp(sum(own) / len(own)), rel=1e-4)
    summary = result.summary()
    assert summary["metrics"]["perplexity"]["mean"] == pytest.approx(
        math.exp(total / count), rel=1e-4
    )
    assert count < data.targets.numel()


# -- files ---------------------------------------------------------------------------------------
def test_an_exported_adapter_is_loaded_by_peft_and_gives_the_same_outputs(tmp_path):
    base = llama()
    model = with_lora(copy.deepcopy(base))
    result = il.run("ditto:lr=0.5,personal_lr=0.5,steps=2", model, speakers(), rounds=2, batch=4)
    ids = torch.randint(0, WORDS, (3, 7))
    for name in SPEAKERS:
        paths = result.export_adapter(name, tmp_path / name)
        assert [p.name for p in paths] == ["adapter_config.json", "adapter_model.safetensors"]
        assert json.loads(paths[0].read_text())["peft_type"] == "LORA"
        assert all("lora_" in key for key in load_file(paths[1]))
        loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), str(tmp_path / name)).eval()
        with torch.no_grad():
            outputs = loaded(input_ids=ids).logits
            assert (outputs - result.personal(name)(input_ids=ids).logits).abs().max() <= 1e-6
            assert (outputs - base(input_ids=ids).logits).abs().max() > 1e-3


def test_only_models_of_peft_have_an_adapter_to_export(tmp_path):
    result = il.run("fedavg:steps=1", llama(), speakers(), rounds=1, batch=4)
    with pytest.raises(SettingError, match="model must be a module of peft"):
        result.export_adapter("speaker-1", tmp_path)


def test_a_run_s_directory_holds_no_base_and_its_models_are_read_back(tmp_path):
    base = llama()
    model = with_lora(copy.deepcopy(base), rank=1)
    data = speakers()
    settings = {"rounds": 2, "batch": 4, "directory": str(tmp_path / "run")}
    result = il.run("ditto:steps=1", model, data, **settings)
    stored = list((tmp_path / "run").rglob("*.safetensors"))
    adapters = 4 * il.Task(model).d
    assert stored and all(p.stat().st_size < 20 * adapters + 20_000 for p in stored)
    assert not any(b"embed_tokens" in p.read_bytes() for p in stored)
    loaded = il.load(tmp_path / "run", task=il.Task(model), federation=data)
    for name in SPEAKERS:
        one, other = (r.personal(name).state_dict() for r in (loaded, result))
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_the_command_exports_the_adapter_of_a_client(tmp_path, monkeypatch, capsys):
    (tmp_path / "adapted.py").write_text(
        "import peft\n"
        "from torch import nn\n"
        "def net(inputs, outputs):\n"
        "    base = nn.Sequential(nn.Linear(inputs[0], 8), nn.ReLU(), nn.Linear(8, outputs))\n"
        "    return peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=['0', '2']))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = "run fedsa-lora --model adapted:net --clients 3 --samples 20 --rounds 1 --directory run"
    assert main(run.split()) == 0
    client = il.data.load("synthetic", clients=3, samples=20).ids[0]
    export = ["export", "run", "--trust", "--format", "peft", "-o", "adapter"]
    assert main([*export, "--client", str(client)]) == 0
    assert {p.name for p in (tmp_path / "adapter").iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    capsys.readouterr()
    assert main(export) != 0
    assert "--format peft is of one client" in capsys.readouterr().err
