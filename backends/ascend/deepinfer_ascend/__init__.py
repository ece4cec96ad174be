"""Ascend backend of DeepInfer. Not run on hardware yet."""
