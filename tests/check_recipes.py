"""Recipes for other package managers, read by their own tools: ``check_recipes.py FOLDER``, by the Python of `release.tools`.

The folder has them with the version and the sum of the sdist filled in. A tool that this machine lacks is named.
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path


def conda(file: Path) -> str:
    """Read and render the recipe as rattler-build does."""
    from rattler_build import Stage0Recipe, VariantConfig

    (found,) = Stage0Recipe.from_file(str(file)).render(VariantConfig())
    told = found.recipe.to_dict()
    assert told["build"]["noarch"] == "python", told
    return f"{told['package']['name']} {told['package']['version']}, noarch: {', '.join(told['requirements']['run'])}"


def easybuild(file: Path) -> str:
    """Read the easyconfig with EasyBuild's parser, and judge its style."""
    from easybuild.framework.easyconfig.parser import EasyConfigParser
    from easybuild.framework.easyconfig.style import check_easyconfigs_style
    from easybuild.tools.options import set_up_configuration

    set_up_configuration(
        args=["--allow-use-as-root-and-accept-consequences", f"--prefix={file.parent}"], silent=True
    )
    told = EasyConfigParser(str(file)).get_config_dict()
    wrong = check_easyconfigs_style([str(file)])
    assert wrong == 0, f"{wrong} faults of style"
    return f"{told['name']} {told['version']}, {told['toolchain']['name']} {told['toolchain']['version']}"


def spack(file: Path) -> str:
    """Read the package as Python, and let Spack choose releases for it beside its own collection; it is on no index of Python packages."""
    body = ast.parse(file.read_text()).body
    (package,) = (node for node in body if isinstance(node, ast.ClassDef))
    calls = [ast.unparse(node) for node in ast.walk(package) if isinstance(node, ast.Call)]
    told = f"{package.name}: {sum(call.startswith('depends_on') for call in calls)} dependencies"
    if not shutil.which("spack"):
        return f"{told}; not read by Spack, which is not here"
    repository = file.parents[1] / "spack_repo/site"
    shutil.copytree(file.parent, repository / "packages/py_hpcoll")
    (repository / "repo.yaml").write_text("repo:\n  namespace: site\n  api: v2.2\n")
    ours = ["spack", "-c", f"repos:[{repository}]"]
    subprocess.run([*ours, "audit", "packages", "py-hpcoll"], stdout=subprocess.DEVNULL, check=True)
    for mpi in ("openmpi", "mpich"):
        subprocess.run([*ours, "spec", f"py-hpcoll ^{mpi}"], stdout=subprocess.DEVNULL, check=True)
    return f"{told}; Spack has releases of them all, with Open MPI and with MPICH"


def container(file: Path) -> str:
    """Let hadolint judge the container file."""
    subprocess.run([Path(sys.executable).with_name("hadolint"), file], check=True)
    return "hadolint has nothing to say"


def module(file: Path) -> str:
    """Load the module with Lmod, beside a stand-in for the module that it depends on."""
    lmod = os.environ.get("LMOD_CMD") or shutil.which("lmod", path="/usr/share/lmod/lmod/libexec")
    if not lmod:
        return "not tried: no Lmod here"
    version = file.parents[1].name
    tree = file.parent / "tree"
    for name, text in ((f"hpcoll/{version}", file.read_text()), ("openmpi/5", 'help("a stand-in")\n')):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / f"{name}.lua").write_text(text)
    environment = os.environ | {"MODULEPATH": str(tree)}
    done = subprocess.run(
        [lmod, "bash", "load", "hpcoll"], env=environment, capture_output=True, text=True, check=True
    )
    assert "HPCOLL_CACHE=" in done.stdout, done.stderr
    return "Lmod loads it"


CHECKS = {
    "conda/recipe.yaml": conda,
    "easybuild/hpcoll-foss-2025b.eb": easybuild,
    "spack/py_hpcoll/package.py": spack,
    "container/Containerfile": container,
    "modules/hpcoll.lua": module,
}

if __name__ == "__main__":
    for name, check in CHECKS.items():
        print(f"packaging/{name}: {check(Path(sys.argv[1], name))}", flush=True)
