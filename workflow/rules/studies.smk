# What each study changes, and how far that moves the results of the main experiment.
rule studies:
    input:
        runs=[
            f"<results>/{folder}runs/{job}/{frame}.parquet"
            for folder, jobs in JOBS.items()
            for job in jobs
            for frame in results.COLUMNS
        ],
        partitions=expand("<results>/{partition}.npz", partition=PARTITIONS),
        paper=HERE / "config/paper_table1.csv",
        source=[SOURCE / "figures.py", SOURCE / "tables.py"],
    output:
        table=report(
            "<results>/tables/studies.csv",
            caption="../report/studies.rst",
            category="Tables",
            labels={"table": "studies", "shows": "accuracy of every study"},
        ),
        samples=report(
            "<results>/figures/samples.png",
            caption="../report/samples.rst",
            category="Figures",
            labels={"figure": "samples", "shows": "accuracy by amount of data"},
        ),
        partitions=report(
            "<results>/figures/partitions.png",
            caption="../report/partitions.rst",
            category="Figures",
            labels={"figure": "partitions", "shows": "accuracy by partition"},
        ),
        pdfs=expand("<results>/figures/{name}.pdf", name=["samples", "partitions"]),
    log:
        "<results>/logs/studies.log",
    benchmark:
        "<results>/benchmarks/studies.tsv"
    conda:
        "../../environment.yml"
    params:
        runs=RUNS,
        changes=CHANGES,
    message:
        "Comparing studies."
    script:
        "../scripts/studies.py"
