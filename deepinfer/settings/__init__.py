"""Environment variables: what each means, what it is set to, and whether it has an effect here."""
