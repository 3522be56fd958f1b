"""How waiting threads behave: speed of a small ViT alone and beside busy jobs, by the setting of OpenMP.

    python benchmarks/threads.py [--size tiny] [--batch 1] [--jobs 2] [--seconds 8] [--rounds 3]

Each row is a process of its own, because OpenMP reads its settings when torch is loaded. The rows take turns, and the
table has the median of the rounds, in dense images per second. A busy job is a process that multiplies matrices with
one thread. `redi` sets GOMP_SPINCOUNT=1000 for its commands if the user has set nothing.
"""

import argparse
import os
import subprocess
import sys
from statistics import median

SETTINGS: dict[str, dict[str, str]] = {
    "torch's default": {},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "GOMP_SPINCOUNT=30000": {"GOMP_SPINCOUNT": "30000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "one thread, passive": {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
}
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
WORK = """
import sys, time, torch
from redi.speed.paths import random_backbone
backbone, batch, seconds = random_backbone(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
pixels = torch.randn(batch, 3, 224, 224)
with torch.inference_mode():
    for _ in range(2):
        backbone.encode(backbone.embed(pixels))
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        backbone.encode(backbone.embed(pixels))
        calls += 1
print(calls * batch / (time.perf_counter() - begin))
"""
BUSY = "import torch; torch.set_num_threads(1); x = torch.randn(512, 512)\nwhile True: x = (x @ x).clamp(-1, 1)"


def images_per_second(settings: dict[str, str], options: argparse.Namespace) -> float:
    environment = {name: value for name, value in os.environ.items() if name not in WAITING} | settings
    command = [sys.executable, "-c", WORK, options.size, str(options.batch), str(options.seconds)]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", choices=("tiny", "small", "base"), default="tiny")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="busy jobs")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    speeds: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.rounds):
        for jobs in (0, options.jobs):
            busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(jobs)]
            try:
                for name, settings in SETTINGS.items():
                    speeds.setdefault((name, jobs), []).append(images_per_second(settings, options))
            finally:
                for job in busy:
                    job.kill()
    print(f"| setting | alone | beside {options.jobs} jobs |\n|---|---|---|")
    for name in SETTINGS:
        print(f"| {name} | {median(speeds[name, 0]):.1f} | {median(speeds[name, options.jobs]):.1f} |")


if __name__ == "__main__":
    main()
