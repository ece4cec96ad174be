"""Backend compiled of DeepInfer: three operators through torch.compile on the CPU."""
