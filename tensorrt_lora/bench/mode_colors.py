"""One colour per benchmark mode, the same in every figure."""

from tensorrt_lora.bench.bench_mode import BenchMode

MODE_COLORS = {
    BenchMode.BASE.value: "#222222",
    BenchMode.IDLE.value: "#8c8c8c",
    BenchMode.SEQUENTIAL.value: "#d1495b",
    BenchMode.OVERLAP.value: "#edae49",
    BenchMode.BEST.value: "#00798c",
}
