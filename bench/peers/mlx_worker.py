"""The process of MLX in speed.ts, on the CPU: FOLDER THREADS. FOLDER holds an MLX checkpoint (config.json, safetensors).
Takes a request a line (peers.ts has them), answers with a line of JSON. Needs `pip install "mlx[cpu]" mlx-lm`."""
import json
import os
import sys
import time
from pathlib import Path

folder, threads = sys.argv[1:3]
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = threads

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

mx.set_default_device(mx.cpu)
model = None


def step(ids, cache):
    """The likeliest token after more ids."""
    token = mx.argmax(model(mx.array([ids]), cache=cache)[:, -1], axis=-1)
    mx.eval(token)
    return token.item()


for line in sys.stdin:
    what, *words = line.split()
    numbers = [int(word) for word in words]
    start = time.perf_counter()
    if what == "load":
        model, _ = load_model(Path(folder))
        model.set_dtype(mx.float32)  # scales of 4-bit weights too: bf16 is many times slower there
    elif what == "prefill":
        step(numbers, make_prompt_cache(model))
    else:
        count, *ids = numbers
        cache = make_prompt_cache(model)
        token = step(ids, cache)
        start = time.perf_counter()
        for _ in range(count):
            token = step([token], cache)
    print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)
