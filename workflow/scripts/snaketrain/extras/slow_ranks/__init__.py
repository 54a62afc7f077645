"""Names the ranks that compute more slowly than the others, and may do without their nodes."""
