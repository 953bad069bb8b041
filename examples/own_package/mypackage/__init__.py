"""A model and a method that are no part of cgpfl."""
