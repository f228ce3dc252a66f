"""The shapes of a pipeline: each kind is a module here, named as the method that declares it."""
