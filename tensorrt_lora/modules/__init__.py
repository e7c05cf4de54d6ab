"""The nn.Modules that models are built from: they hold parameters and call ops."""
