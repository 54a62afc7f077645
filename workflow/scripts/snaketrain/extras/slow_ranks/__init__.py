"""Names the ranks that compute more slowly than the others."""
