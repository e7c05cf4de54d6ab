"""How is it computed? One file per op: the public op, its torch reference and its Triton kernel."""
