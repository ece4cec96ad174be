"""The reference backend: pure PyTorch, the definition of every operator."""
