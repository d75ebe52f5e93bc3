"""Skills as a part of the product."""

from mainspring.parts import FileKind, Part

PART = Part(name="skills", files=(FileKind("skill", "mainspring.features.skills.skill_definition:file_schema"),))
