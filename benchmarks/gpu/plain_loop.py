"""A process that trains a language model on a GPU in plain PyTorch and prints the seconds of each step on stdout.

`python -m benchmarks.gpu.plain_loop CONFIG TOKENS BATCH MICRO ROUNDS PRECISION`: CONFIG a folder with config.json,
TOKENS a .npy file of rows, PRECISION `float32` or `bf16`. The library is not used.
"""

import sys
import time

import numpy as np
import torch
import transformers


def main() -> None:
    """Train with micro-batch accumulation and fused AdamW; bf16 is torch.autocast, as Hugging Face's Trainer has it."""
    config, tokens, precision = sys.argv[1], np.load(sys.argv[2]), sys.argv[6]
    batch, micro, rounds = map(int, sys.argv[3:6])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    settings = transformers.AutoConfig.from_pretrained(config, trust_remote_code=False)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32, trust_remote_code=False)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    rows = torch.from_numpy(tokens.astype(np.int64))
    order = torch.randperm(len(rows))
    for round in range(rounds):
        start_s = time.perf_counter()
        for first in range(round * batch, (round + 1) * batch, micro):
            given = rows[order[torch.arange(first, first + micro) % len(order)]].cuda()
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
                loss = model(input_ids=given, labels=given).loss * micro / batch
            loss.backward()
            loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        print(time.perf_counter() - start_s, flush=True)
    print(torch.cuda.max_memory_allocated(), flush=True)


if __name__ == "__main__":
    main()
