"""DeepInfer: an inference engine for DeepSeek-V4.1 on any accelerator."""
