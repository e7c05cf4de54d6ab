"""How fast is it? Benchmarks over the whole engine with dummy weights, and traces of single steps."""
