"""From conversations to ids."""
