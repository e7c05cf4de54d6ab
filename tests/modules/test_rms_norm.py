import torch

from tensorrt_lora.modules.rms_norm import RMSNorm


def test_both_forms_agree() -> None:
    norm = RMSNorm(size=12, eps=1e-6, dtype=torch.float32, device=torch.device("cpu"))
    norm.weight.normal_()
    x, residual = torch.randn(2, 3, 12)
    total = x + residual
    expected = total / total.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt() * norm.weight
    torch.testing.assert_close(norm(total), expected)
    normed, stream = norm.add_and_norm(x, residual)
    torch.testing.assert_close(normed, expected)
    torch.testing.assert_close(stream, total)
