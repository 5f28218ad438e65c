"""What worker files say, and what a generated worker may have."""
