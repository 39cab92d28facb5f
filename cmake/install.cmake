include(CMakePackageConfigHelpers)
install(TARGETS nanovllm EXPORT nanovllm-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS nanovllm_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/nanovllm DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/nanovllm)
install(EXPORT nanovllm-targets NAMESPACE nanovllm:: DESTINATION ${package_dir})
configure_package_config_file(cmake/nanovllm-config.cmake.in nanovllm-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(nanovllm-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/nanovllm-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/nanovllm-config-version.cmake DESTINATION ${package_dir})
