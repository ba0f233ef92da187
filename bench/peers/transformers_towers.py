"""The process of Transformers in towers.ts, on the CPU: FOLDER THREADS DTYPE. FOLDER is what synthetic.ts writes with towers;
its weights are converted to DTYPE (bfloat16, float32). Requests are `load`, `vision COLUMNS ROWS` (patches) and `audio FRAMES`;
the values that towers see are noise. Needs `pip install torch transformers safetensors`."""
import json
import os
import sys
import time

import torch
from safetensors import safe_open
from transformers import Gemma4AudioConfig, Gemma4TextConfig, Gemma4VisionConfig
from transformers.models.gemma4.modeling_gemma4 import (
    Gemma4AudioModel,
    Gemma4MultimodalEmbedder,
    Gemma4VisionModel,
)

folder, threads, dtype = sys.argv[1:4]
torch.set_num_threads(int(threads))
DTYPE = getattr(torch, dtype)
modules = {}


def theirs(tensor):
    """A tensor in MLX layout as torch lays it out: channels of convolutions before the window."""
    return tensor.movedim(-1, 1).contiguous() if tensor.ndim >= 3 else tensor


def load():
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    text = Gemma4TextConfig(hidden_size=config["text_config"]["hidden_size"])
    vision = Gemma4VisionConfig(**config["vision_config"])
    audio = Gemma4AudioConfig(**config["audio_config"])
    vision._attn_implementation = "sdpa"
    modules["vision_tower"] = Gemma4VisionModel(vision)
    modules["audio_tower"] = Gemma4AudioModel(audio)
    modules["embed_vision"] = Gemma4MultimodalEmbedder(vision, text)
    modules["embed_audio"] = Gemma4MultimodalEmbedder(audio, text)
    states = {name: {} for name in modules}
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as file:
        for name in file.keys():
            root, _, rest = name.partition(".")
            if root in states:
                tensor = file.get_tensor(name)
                states[root][rest] = tensor if rest.endswith("table") else theirs(tensor)
    for name, module in modules.items():
        module.load_state_dict(states[name], strict=True)
        modules[name] = module.to(DTYPE).eval()


def see(columns, rows):
    positions = torch.stack(torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy"), -1)
    pixels = torch.rand(1, rows * columns, 768, dtype=DTYPE)
    out = modules["vision_tower"](pixel_values=pixels, pixel_position_ids=positions.reshape(1, -1, 2))
    return modules["embed_vision"](out.last_hidden_state)


def hear(frames):
    out = modules["audio_tower"](torch.rand(1, frames, 128, dtype=DTYPE), torch.ones(1, frames, dtype=torch.bool))
    return modules["embed_audio"](out.last_hidden_state)


with torch.inference_mode():
    for line in sys.stdin:
        what, *words = line.split()
        numbers = [int(word) for word in words]
        start = time.perf_counter()
        result = {"load": load, "vision": see, "audio": hear}[what](*numbers)
        answer = {"seconds": time.perf_counter() - start}
        if result is not None:
            answer["tokens"] = result.shape[-2]
        print(json.dumps(answer), flush=True)
