"""HTTP, and which addresses may be contacted."""
