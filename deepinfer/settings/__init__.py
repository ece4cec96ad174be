"""Environment variables: what each one means, its value here, and whether it has an effect."""
