"""The one directory that requests may load adapters from.

Owns the way from a client's text to a directory: nothing outside the root is reached, by `..`, by absolute paths or by
links, and no pickled weights. Called by `AdapterCatalog`, in threads that may wait for a disk.
"""

from pathlib import Path

from tensorrt_lora.adapters.peft_files import CONFIG_NAME, PICKLE_NAME, SAFETENSORS_NAME
from tensorrt_lora.serve.adapter_name import is_adapter_name
from tensorrt_lora.serve.api_error import ApiError

_MAX_ENTRIES = 1000


class AdapterRoot:
    """Raises ValueError when `directory` is none. Links inside the root may lead to other places inside the root."""

    def __init__(self, directory: str) -> None:
        try:
            self.path = Path(directory).expanduser().resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise ValueError(f"lora_root {directory!r} cannot be used: {error}") from error
        if not self.path.is_dir():
            raise ValueError(f"lora_root {directory!r} is not a directory")

    def child(self, name: str) -> Path:
        """The directory of the adapter that is called like a direct child of the root.

        Raises ApiError: 404 where there is none, 400 for one that may not be served.
        """
        if "/" in name or not is_adapter_name(name) or not self._is_adapter(self.path / name):
            raise ApiError(404, f"there is no model {shown(name)} here", code="model_not_found", param="model")
        return self.directory(name, param="model")

    def directory(self, path: str, *, param: str) -> Path:
        """The resolved directory of an adapter at `path`, absolute or relative to the root.

        Raises ApiError: 400 for a path that leaves the root or may not be served, 404 where there is no adapter.
        """
        target = self._inside(self.path / path, path, param)
        if not self._is_adapter(target):
            raise ApiError(404, f"there is no adapter at {shown(path)}", code="adapter_not_found", param=param)
        try:
            self._check_files(target, path, param)
        except OSError as error:
            raise ApiError(
                400, f"{shown(path)} cannot be read: {error.strerror}", code="adapter_refused", param=param
            ) from error
        return target

    def name_of(self, directory: Path) -> str:
        """What a directory of the root is called where its path is all that is known."""
        return directory.relative_to(self.path).as_posix()

    def _inside(self, target: Path, said: str, param: str) -> Path:
        try:
            resolved = target.resolve()
        except (OSError, ValueError, RuntimeError) as error:  # too long, a zero byte, a circle of links
            raise ApiError(400, f"{shown(said)} is no path", code="invalid_path", param=param) from error
        if self.path != resolved and self.path not in resolved.parents:
            # Alike for what exists and what does not: the answer tells nothing of other directories.
            raise ApiError(
                400, f"{shown(said)} leaves the server's adapter directory", code="path_outside_root", param=param
            )
        return resolved

    def _is_adapter(self, directory: Path) -> bool:
        try:
            return (directory / CONFIG_NAME).is_file()
        except (OSError, ValueError):
            return False

    def _check_files(self, directory: Path, said: str, param: str) -> None:
        entries = []
        for entry in directory.iterdir():
            entries.append(entry.name)
            self._inside(entry, f"{said}/{entry.name}", param)
            if not (entry.is_file() or entry.is_dir()):
                raise ApiError(400, f"{shown(entry.name)} is no regular file", code="adapter_refused", param=param)
            if len(entries) > _MAX_ENTRIES:
                raise ApiError(400, f"{shown(said)} holds too many files", code="adapter_refused", param=param)
        if PICKLE_NAME in entries and SAFETENSORS_NAME not in entries:
            raise ApiError(
                400,
                f"{shown(said)} holds pickled weights ({PICKLE_NAME}), which requests may not load: save the adapter "
                "as safetensors",
                code="adapter_refused",
                param=param,
            )


def shown(text: str) -> str:
    """A client's text inside a message: quoted, plain ASCII, not too long."""
    return ascii(text if len(text) <= 100 else text[:97] + "...")
