-- A module of Lmod for an environment in /opt/hpcoll/@VERSION@, made as docs/how_to/site_install.md says.
help([[Fast, proven MPI collectives for Python programs that are written with mpi4py.
"hpcoll doctor" says whether all is well, "hpcoll demo" shows what it does.]])
whatis("Name: hpcoll")
whatis("Version: @VERSION@")
whatis("Description: MPI collectives for Python")
family("hpcoll")
depends_on("openmpi")
local root = "/opt/hpcoll/@VERSION@"
prepend_path("PATH", pathJoin(root, "venv/bin"))
-- Compiled code for all users, made by root: hpcoll warmup --to /opt/hpcoll/@VERSION@/cache
setenv("HPCOLL_CACHE", pathJoin(root, "cache"))
