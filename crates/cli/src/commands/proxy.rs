//! `splitway proxy`: the processes of `serve`, whose host process forwards instead.

use failure::Failure;

use crate::args::overlay;
use crate::args::proxy::ProxyArgs;
use crate::commands::serve;
use config::file::ConfigFile;
use config::temporary::TemporaryDirectory;

/// Forwards until the user or a failure ends it.
pub(crate) fn run(args: &ProxyArgs) -> Result<(), Failure> {
    // Before it is found to serve no files.
    if !ConfigFile::read(&args.config)?.parse()?.is_proxy() {
        let file = args.config.display();
        return Err(Failure::input(file, "it configures no proxy")
            .remedy("Name the ports to serve on with [[proxy.listen]]: docs/proxy.md."));
    }
    let config = overlay::load_file(&args.config)?;
    // A NIC process reads below some directory, and there is nothing to be read.
    let is_any = config.nic.root.is_some() || !config.nic.attach.is_empty();
    let empty = (!is_any && !args.print_config).then(|| {
        TemporaryDirectory::new()
            .map_err(|error| Failure::broken("making an empty directory", error))
    });
    let empty = empty.transpose()?;
    let serve_args = args
        .to_serve(empty.as_ref().map(|directory| directory.path()))
        .map_err(|error| Failure::broken("options of the proxy", error))?;
    serve::run(&serve_args)
}
