"""OCI images as states of worlds: each layer of an image is stored once, and a world over an image starts by a mount.

Main types, in the order in which to read them:

- `ImageReference` (`references.py`): what a user writes: a registry's name, a path, an engine's name.
- `ImageConfig`, `ImageManifest`, `Platform` (`documents.py`): the documents of an image, read and checked.
- `SourceImage` (`sources.py`): an image where it comes from: its documents, and a function that gets a layer.
  `local_images.py` (OCI layouts, `docker save`, docker, podman, buildah), `registry.py` (protocol v2).
- `LayerStream` (`sources.py`): a layer's tar, decompressed, bounded and verified.
- `Catalogue` (`catalogue.py`): which images, names and layers a home has.
- `ImageLibrary` (`library.py`): pull an image into a store.

The package stands on `ramify.fork_engine`. It knows no worlds and no workflows.
"""
