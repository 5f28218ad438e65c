"""Named folders of a worker, resolved without races."""
