"""Help and completion, which import nothing but the standard library."""
