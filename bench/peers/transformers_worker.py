"""The process of Transformers in speed.ts, on the CPU: SOURCE THREADS. SOURCE is a GGUF file, whose weights are dequantised
to bf16, or a folder with a config.json, whose text network gets random weights in bf16 (speed does not depend on them).
Takes a request a line (peers.ts has them), answers with a line of JSON. Needs `pip install torch transformers gguf accelerate`."""
import json
import os
import sys
import time

import torch
from transformers import AutoModelForCausalLM, Gemma4TextConfig
from transformers.initialization import no_init_weights
from transformers.models.gemma4.modeling_gemma4 import Gemma4ForCausalLM

source, threads = sys.argv[1:3]
torch.set_num_threads(int(threads))
POOL = 1 << 20  # random numbers, repeated
model = None


def load_random(folder):
    with open(os.path.join(folder, "config.json")) as file:
        settings = json.load(file)["text_config"]
    settings["final_logit_softcapping"] = float(settings["final_logit_softcapping"])  # JSON may have an integer
    config = Gemma4TextConfig(**settings)
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with no_init_weights():
        network = Gemma4ForCausalLM(config)
    network.tie_weights()
    torch.set_default_dtype(torch.float32)
    pool = (torch.randn(POOL) * 0.02).to(torch.bfloat16)
    for parameter in network.parameters():
        flat = parameter.data.view(-1)
        if parameter.ndim == 1:
            flat.fill_(1)
        else:
            for at in range(0, flat.numel(), POOL):
                part = flat[at : at + POOL]
                part.copy_(pool[: part.numel()])
    for name, buffer in network.named_buffers():
        if "layer_scalar" in name:
            buffer.fill_(0.5)
    return network


def load():
    if not source.endswith(".gguf"):
        return load_random(source)
    folder, name = os.path.split(os.path.abspath(source))
    return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.bfloat16)


def step(ids, cache=None):
    """The likeliest token after more ids, and the cache."""
    output = model(torch.tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=1)
    return int(output.logits[0, -1].argmax()), output.past_key_values


with torch.inference_mode():
    for line in sys.stdin:
        what, *words = line.split()
        numbers = [int(word) for word in words]
        start = time.perf_counter()
        if what == "load":
            model = load().eval()
        elif what == "prefill":
            step(numbers)
        else:
            count, *ids = numbers
            token, cache = step(ids)
            start = time.perf_counter()
            for _ in range(count):
                token, cache = step([token], cache)
        print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)
