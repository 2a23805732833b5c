"""What the package's metadata takes from other files: its README and its addresses.

A package index shows the README away from the repository, where a link to a file leads
nowhere. While hatchling builds, each becomes a link into the repository, at the tag of
the version that is built.
"""

import pathlib
import re

from hatchling.metadata.plugin.interface import MetadataHookInterface

# The end of `[text](target)`, of a picture, and of a picture in a link.
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
PICTURES = {".gif", ".jpg", ".png", ".svg"}


class Metadata(MetadataHookInterface):
    def update(self, metadata):
        repository = self.config["repository"]
        tag = f"v{metadata['version']}"
        root = pathlib.Path(self.root)

        def absolute(match):
            target = match[1]
            if not (root / target).exists():
                raise FileNotFoundError(
                    f"README.md links to {target}, which is missing"
                )
            kind = "raw" if pathlib.Path(target).suffix in PICTURES else "blob"
            return f"]({repository}/{kind}/{tag}/{target}"

        text = LINK.sub(absolute, (root / "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = {
            "Repository": repository,
            "Documentation": f"{repository}/blob/{tag}/docs/index.md",
            "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
